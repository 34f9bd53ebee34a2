"""moss-voice trt quantize: calibration prompts, one calibration for all formats, the report, errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from app.audio.wav import write_wav
from app.cli import main
from app.commands.questions import read_texts
from app.commands.trt_quantize import SOFTEST_DB, SPEEDS, calibration_prompts
from engine_runtime.errors import AudioInputError
from engine_runtime.types import Modality
from tests.factories.trt_checkpoints import convert

QUESTION = Path(__file__).resolve().parents[2] / "data" / "speech" / "question.wav"


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    folder = tmp_path / "wavs"
    folder.mkdir()
    shutil.copy(QUESTION, folder)
    return folder


@pytest.fixture
def checkpoint(random_bundle: Path, tmp_path: Path) -> Path:
    return convert(random_bundle, tmp_path / "plain", "bfloat16").directory


@pytest.mark.slow
def test_quantize(
    random_bundle: Path,
    checkpoint: Path,
    recordings: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "texts.txt").write_text("hello\n")

    def run(to: str, *more: str) -> dict[str, object]:
        command = [
            "trt",
            "quantize",
            str(checkpoint),
            "--to",
            str(tmp_path / to),
            "--bundle",
            str(random_bundle),
        ]
        wavs = ["--wavs", str(recordings), "--questions", str(recordings), "--prompts", "4"]
        texts = ["--texts", str(tmp_path / "texts.txt"), "--reply-tokens", "3", "--json"]
        status = main([*command, *wavs, *texts, *more])
        out = capsys.readouterr()
        document: dict[str, object] = json.loads(out.out.splitlines()[-1])
        assert out.out.splitlines()[0] == str(tmp_path / to)
        assert status == (0 if document["aligned"] else 1)
        assert document == json.loads((tmp_path / to / "quantization_report.json").read_text())
        document["said"] = out.err
        return document

    fp8 = run("fp8")
    assert "Calibrated with 4 prompts" in str(fp8["said"])
    assert (checkpoint / "calibration.safetensors").is_file()
    assert len(fp8["layers"]["rows"]) == 2  # type: ignore[index]
    assert len(fp8["heads"]["rows"]) == 6  # type: ignore[index]
    int4 = run("int4", "--format", "int4", "--tails")
    assert "Uses the calibration in" in str(int4["said"])
    assert len(int4["layers"]["rows"]) == 4  # type: ignore[index]
    assert int4["calibration"] == fp8["calibration"]
    with safe_open(tmp_path / "int4" / "rank0.safetensors", framework="pt") as content:
        assert "text_layers.0.mlp.fc.prequant_scaling_factor" in content.keys()  # noqa: SIM118


@pytest.mark.slow
def test_what_cannot_be_quantized(
    random_bundle: Path,
    checkpoint: Path,
    recordings: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refused(*words: str | Path) -> str:
        assert main(["trt", "quantize", *map(str, words), "--bundle", str(random_bundle)]) == 1
        return capsys.readouterr().err.splitlines()[-1]

    to = ("--to", tmp_path / "q")
    assert "holds no finished checkpoint" in refused(random_bundle, *to)
    assert "holds a checkpoint already" in refused(checkpoint, "--to", checkpoint)
    assert "no WAV or FLAC file" in refused(checkpoint, *to, "--wavs", tmp_path)
    assert "cannot be read" in refused(checkpoint, *to, "--texts", tmp_path / "none.txt")
    assert "no WAV or FLAC file" in refused(checkpoint, *to, "--questions", tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    assert "file is a file" in refused(checkpoint, "--to", tmp_path / "file")
    assert "file is a file" in refused(checkpoint, *to, "--statistics", tmp_path / "file" / "statistics")
    assert "is a folder" in refused(checkpoint, *to, "--statistics", tmp_path)
    (recordings / "zero.wav").write_text("no sound")
    for option in ("--wavs", "--questions"):
        assert "zero.wav is not a WAV or FLAC file" in refused(checkpoint, *to, option, recordings)
    assert "is not a device" in refused(checkpoint, *to, "--device", "quantum")
    assert not (checkpoint / "calibration.safetensors").exists()
    (tmp_path / "statistics").write_text("")
    assert "not a valid calibration" in refused(checkpoint, *to, "--statistics", tmp_path / "statistics")
    assert not (tmp_path / "q").exists()


def test_a_tilde_is_the_folder_of_the_user(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(checkpoint.parent))
    assert main(["trt", "quantize", "~/none", "--to=~/quantized"]) != 0
    assert str(checkpoint.parent / "none") in capsys.readouterr().err


RATE = 16_000


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = []
    for number, seconds in enumerate((0.5, 1.0)):
        time = np.arange(int(RATE * seconds)) / RATE
        made.append(tmp_path / f"{number}.wav")
        write_wav(made[-1], np.sin(2 * np.pi * 440 * time).astype(np.float32) * 0.5, RATE)
    return made


def test_the_first_round_is_as_recorded_and_later_ones_are_varied(files: list[Path]) -> None:
    made = list(calibration_prompts(files, [], RATE, 12))
    assert len(made) == 12
    spoken = [prompt.question for prompt in made]
    assert [prompt.reply for prompt in made[:4]] == [Modality.SPEECH] * 3 + [Modality.TEXT]
    for number, pcm in enumerate(spoken):
        assert not isinstance(pcm, str)
        length = (0.5, 1.0)[number % 2] * RATE
        if number < 2:
            assert len(pcm) == length
            continue
        assert length / SPEEDS[1] - 2 <= len(pcm) <= length / SPEEDS[0] + 2
        assert len(pcm) != length
        gain = float(np.abs(pcm).max()) / 0.5
        assert 10 ** (SOFTEST_DB / 20) * 0.95 < gain < 1.05
    assert len({len(pcm) for pcm in spoken}) > 9
    again = [prompt.question for prompt in calibration_prompts(files, [], RATE, 12)]
    assert all(np.array_equal(a, b) for a, b in zip(spoken, again, strict=True))


def test_texts_come_in_between(files: list[Path], tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("what is this\n\n  and that \n", encoding="utf-8")
    assert read_texts(file) == ["what is this", "and that"]
    made = list(calibration_prompts(files, read_texts(file), RATE, 9))
    assert [prompt.question for prompt in made[2::3]] == ["what is this", "and that", "what is this"]
    assert sum(isinstance(prompt.question, str) for prompt in made) == 3


def test_a_file_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    for name, words in (("empty.txt", "holds no text"), ("none.txt", "cannot be read")):
        with pytest.raises(AudioInputError, match=words):
            read_texts(tmp_path / name)
