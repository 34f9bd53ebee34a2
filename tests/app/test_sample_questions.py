"""Lists of sample questions, valid and damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from app import paths
from app.sample_questions import load_samples


def wav(folder: Path, name: str) -> Path:
    (folder / name).write_bytes(b"RIFF")
    return folder / name


def test_samples_come_in_the_order_of_the_list(tmp_path: Path) -> None:
    b, a = wav(tmp_path, "b.wav"), wav(tmp_path, "a.wav")
    tables = (
        '[[sample]]\nfile = "b.wav"\nenglish = "Who?"\nchinese = "谁？"',
        '[[sample]]\nfile = "a.wav"\nenglish = "Why?"',
    )
    (tmp_path / "samples.toml").write_text("\n".join(tables), encoding="utf-8")
    samples = load_samples(tmp_path)
    assert [sample.path for sample in samples] == [b, a]
    assert [sample.label("en") for sample in samples] == ["Who?", "Why?"]
    assert [sample.label("zh_CN") for sample in samples] == ["Who?（谁？）", "Why?"]


def test_no_label_hides_that_a_recording_is_english() -> None:
    samples = load_samples(paths.assets_dir() / "samples")
    assert all(sample.english in sample.label("zh_CN") for sample in samples)
    assert samples[0].label("zh_CN") == "Hello there.（你好）"
    assert [sample.english for sample in samples if sample.is_declined] == ["Tell me a joke."]


def test_wavs_without_a_list_get_their_name(tmp_path: Path) -> None:
    wav(tmp_path, "two_plus-three.wav")
    assert [sample.english for sample in load_samples(tmp_path)] == ["Two plus three"]


@pytest.mark.parametrize(
    "content",
    [b"", b"not = [toml", b"\xff\xfe\x00", b"sample = 3", b"[[sample]]\nfile = 7\n", b"[[sample]]\n"],
)
def test_a_damaged_list_costs_nothing_else(tmp_path: Path, content: bytes) -> None:
    wav(tmp_path, "a.wav")
    (tmp_path / "samples.toml").write_bytes(content)
    assert [sample.path.name for sample in load_samples(tmp_path)] == ["a.wav"]


def test_a_missing_wav_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "samples.toml").write_text('[[sample]]\nfile = "gone.wav"\nenglish = "?"\n', encoding="utf-8")
    assert load_samples(tmp_path) == []


def test_a_missing_folder_means_no_samples(tmp_path: Path) -> None:
    assert load_samples(tmp_path / "none") == []
