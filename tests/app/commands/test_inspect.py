from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from app.cli import main
from app.commands.inspect import _sizes, count_parameters
from engine_runtime.errors import BundleError


def test_a_bundle_is_described(random_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(random_bundle)]) == 0
    text = capsys.readouterr().out
    assert "random: Tiny random networks" in text
    assert "mel of 80 bands, n_fft 1920, hop 480, 0-8000 Hz" in text
    assert "packets     5 codes, each with 3 of look-ahead" in text
    assert "hears       16000 Hz, speech encoder on the CPU in torch" in text
    assert "languages   not stated" in text
    assert "turn end    not detected" in text


def test_the_check_is_followed_by_another_program(
    random_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(random_bundle), "--json", "--progress"]) == 0
    *lines, document = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1] == {"step": "check", "done": 1.0, "total": 1.0}
    assert document["name"] == "random"


def test_it_says_what_runs_the_speech_encoder(nano_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(nano_bundle)]) == 0
    text = capsys.readouterr().out
    assert "speech encoder on the CPU in onnxruntime" in text
    assert "languages   en\n" in text


@pytest.mark.parametrize(
    ("packets", "text"),
    [([5], "5"), ([5, 5], "5"), ([5, 10], "5, then 10"), ([5, 5, 10, 25], "5, 5, 10, then 25")],
)
def test_packets_that_grow_are_reported_one_by_one(packets: list[int], text: str) -> None:
    assert _sizes(packets) == text


def test_the_json_says_the_same(random_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(random_bundle), "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["input_sample_rate"] == 16000
    assert about["mel"]["hop"] == 480
    assert about["detects_turn_end"] is False
    tensors = safetensors.torch.load_file(random_bundle / "lm.safetensors").values()
    assert about["parameters"]["lm"] == sum(tensor.numel() for tensor in tensors)


def test_the_bundle_of_the_environment_is_the_default(
    random_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MOSS_VOICE_BUNDLE", str(random_bundle))
    assert main(["inspect"]) == 0
    assert str(random_bundle) in capsys.readouterr().out


def test_a_damaged_bundle_is_one_sentence_and_no_traceback(
    random_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(random_bundle, tmp_path / "copy"))
    (copy / "lm.safetensors").unlink()
    assert main(["inspect", str(copy)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("moss-voice: Bundle random lacks lm.safetensors")
    assert "Traceback" not in captured.err


def test_parameters_are_counted_from_the_header(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    safetensors.torch.save_file({"a": torch.zeros(3, 4), "b": torch.zeros(())}, file, metadata={"k": "v"})
    assert count_parameters(file) == 13
    file.write_bytes(b"\xff" * 40)
    with pytest.raises(BundleError, match="not a safetensors file"):
        count_parameters(file)


@pytest.mark.parametrize(
    "header",
    [
        "[]",
        "1",
        '"text"',
        '{"a": null}',
        '{"a": []}',
        '{"a": {"shape": null, "dtype": "F32", "data_offsets": [0, 4]}}',
        '{"a": {"shape": [-3], "dtype": "F32", "data_offsets": [0, 4]}}',
        '{"a": {"shape": [1e3], "dtype": "F32", "data_offsets": [0, 4]}}',
        '{"a": {"shape": ["x", "y"], "dtype": "F32", "data_offsets": [0, 4]}}',
        '{"a": {"shape": [9, 9], "dtype": "F32", "data_offsets": [0, 4]}}',
        '{"a": ' + "[" * 100_000,
    ],
    ids=lambda header: header[:40],
)
def test_headers_that_describe_no_tensors(tmp_path: Path, header: str) -> None:
    file = tmp_path / "w.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(4))
    with pytest.raises(BundleError, match="not a safetensors file"):
        count_parameters(file)


@pytest.mark.slow
def test_parameters_are_counted_without_torch(random_bundle: Path) -> None:
    code = (
        "import sys; from app.commands.inspect import describe; "
        "from engine_runtime.bundle.bundle import Bundle; "
        f"describe(Bundle.open({str(random_bundle)!r})); print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_tensors_are_compared_with_the_manifest(
    random_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(random_bundle), "--tensors"]) == 0
    assert capsys.readouterr().out.count("all as described") == 4
    damaged = shutil.copytree(random_bundle, tmp_path / "bundle")
    tensors = safetensors.torch.load_file(damaged / "lm.safetensors")
    tensors["model.audio_norm.weight"] = torch.ones(3)
    safetensors.torch.save_file(tensors, damaged / "lm.safetensors")
    assert main(["inspect", str(damaged), "--tensors"]) == 1
    out = capsys.readouterr().out
    assert "  wrong shape: model.audio_norm.weight is [3], expected [64]\n" in out
    assert main(["inspect", str(damaged), "--tensors", "--json"]) == 1
    networks = json.loads(capsys.readouterr().out)["networks"]
    assert [bool(network["differences"]) for network in networks] == [True, False, False, False]
