"""moss-voice trt convert, and talk with its result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import main

QUESTION = Path(__file__).resolve().parents[2] / "data" / "speech" / "question.wav"


@pytest.mark.slow
def test_convert_and_talk(random_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, bundle = tmp_path / "checkpoint", tmp_path / "bundle"
    command = ["trt", "convert", str(random_bundle), "--to", str(checkpoint)]
    assert main([*command, "--bundle-to", str(bundle)]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip() == str(checkpoint)
    assert "random: 41 tensors, 0.4 MB in float16." in captured.err
    assert "Every tensor was read again" in captured.err

    def reply(of: Path) -> str:
        assert main(["talk", "--bundle", str(of), "--in", str(QUESTION), "--seed", "5", "--json"]) == 0
        document = json.loads(capsys.readouterr().out.splitlines()[-1])
        return json.dumps([turn["reply"] for turn in document["turns"]])

    assert "lose digits" not in captured.err
    assert reply(bundle) == reply(random_bundle)
    assert main(command) == 0
    assert main([*command[:-1], str(tmp_path / "other"), "--dtype", "bfloat16"]) == 0
    assert "50 tensors of the model lose digits" in capsys.readouterr().err


def test_an_interrupt_says_how_to_go_on(
    random_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["trt", "convert", str(random_bundle), "--to", str(tmp_path / "checkpoint")]
    with monkeypatch.context() as patch:
        patch.setattr("engine_runtime.tensorrt.checkpoint.convert.Conversion.finish", _interrupt)
        assert main(command) == 130
    assert "The same command resumes where it stopped." in capsys.readouterr().err
    assert not (tmp_path / "checkpoint" / "config.json").exists()
    assert main(command) == 0
    assert (tmp_path / "checkpoint" / "config.json").exists()


def _interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_what_cannot_be_converted(
    random_bundle: Path, released_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*words: str | Path) -> str:
        assert main(["trt", "convert", *map(str, words)]) == 1
        return capsys.readouterr().err.splitlines()[-1]

    to = ("--to", tmp_path / "checkpoint")
    assert "neither bundle.toml nor config.json" in refused(tmp_path, *to)
    assert "is not a bundle" in refused(released_folder, *to, "--bundle-to", tmp_path / "bundle")
    assert "holds another bundle" in refused(random_bundle, *to, "--bundle-to", random_bundle)
    (tmp_path / "file").write_text("")
    assert "file is a file" in refused(random_bundle, *to, "--bundle-to", tmp_path / "file" / "bundle")
    (tmp_path / "bundle" / "lm").mkdir(parents=True)
    assert "lm already exists" in refused(random_bundle, *to, "--bundle-to", tmp_path / "bundle")
    assert not (tmp_path / "checkpoint").exists()
    assert "is a file" in refused(random_bundle, "--to", tmp_path / "file")
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "rank0.safetensors.part").mkdir()
    assert "cannot be written" in refused(random_bundle, "--to", tmp_path / "closed")
