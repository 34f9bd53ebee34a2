from __future__ import annotations

from pathlib import Path

import pytest

from app import paths
from app.audio.wav import WavReader, read_wav
from app.cli import main
from app.commands.conversation import write_questions

QUESTION = Path(__file__).resolve().parents[2] / "data" / "speech" / "question.wav"


@pytest.mark.slow
def test_the_demo_leaves_sound_and_a_picture(
    random_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paths, "sample_questions", lambda: [QUESTION, QUESTION])
    folder = tmp_path / "demo"
    assert main(["demo", "--bundle", str(random_bundle), "--out-dir", str(folder)]) == 0
    text = capsys.readouterr().out
    assert text.count("you      question\n") == 2
    for name in ("reply.wav", "session.wav", "latency.png", "trace.json"):
        assert str(folder / name) in text
        assert (folder / name).stat().st_size > 1000
    picture = (folder / "latency.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    reply, rate = read_wav(folder / "reply.wav")
    with WavReader(folder / "session.wav") as session:
        assert session.channels == 2
        assert session.seconds > len(reply) / rate


def test_questions_are_repeated_until_there_are_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "sample_questions", lambda: [QUESTION])
    write_questions(tmp_path / "once.wav")
    write_questions(tmp_path / "long.wav", at_least_s=20)
    with WavReader(tmp_path / "once.wav") as once, WavReader(tmp_path / "long.wav") as long:
        assert once.seconds < 10
        assert 20 <= long.seconds < 20 + once.seconds


def test_without_samples_it_says_so(
    random_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paths, "sample_questions", list)
    assert main(["demo", "--bundle", str(random_bundle), "--out-dir", str(tmp_path)]) == 1
    assert "no sample question" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    assert main(["demo", "--out-dir", str(tmp_path / "file" / "demo")]) == 1
    assert "--out-dir" in capsys.readouterr().err
