"""moss-voice trt quantize: one calibration for all formats, the report, and error messages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors import safe_open

from app.cli import main
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
        texts = ["--texts", str(tmp_path / "texts.txt"), "--reply-rows", "3", "--json"]
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
    assert len(fp8["layers"]["rows"]) == 2  # type: ignore[index, call-overload]
    assert len(fp8["heads"]["rows"]) == 6  # type: ignore[index, call-overload]
    int4 = run("int4", "--format", "int4", "--tails")
    assert "Uses the calibration in" in str(int4["said"])
    assert len(int4["layers"]["rows"]) == 4  # type: ignore[index, call-overload]
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
    assert "no WAV file" in refused(checkpoint, *to, "--wavs", tmp_path)
    assert "cannot be read" in refused(checkpoint, *to, "--texts", tmp_path / "none.txt")
    assert "no WAV file" in refused(checkpoint, *to, "--questions", tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    assert "file is a file" in refused(checkpoint, "--to", tmp_path / "file")
    assert "file is a file" in refused(checkpoint, *to, "--statistics", tmp_path / "file" / "statistics")
    assert "is a folder" in refused(checkpoint, *to, "--statistics", tmp_path)
    (recordings / "zero.wav").write_text("no sound")
    for option in ("--wavs", "--questions"):
        assert "zero.wav is not a WAV file" in refused(checkpoint, *to, option, recordings)
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
