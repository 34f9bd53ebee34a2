from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from app.cli import main
from tests.factories.engine_folder import EngineWorld
from tests.factories.golden_encoder import make_golden_bundle

QUESTION = Path(__file__).resolve().parents[2] / "data" / "speech" / "question.wav"


@pytest.fixture
def wavs(tmp_path: Path) -> Path:
    folder = tmp_path / "wavs"
    folder.mkdir()
    shutil.copy(QUESTION, folder / "q.WAV")
    return folder


@pytest.mark.slow
def test_the_verdict_is_said_and_is_the_exit_status(
    random_bundle: Path, wavs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine_runtime.bench.verify.MOST_MEL", 10.0)  # of random networks
    words = ["verify", str(random_bundle), "--wavs", str(wavs), "--json"]
    assert main(words) == 0
    output = capsys.readouterr().out
    document = json.loads(output.splitlines()[-1])
    assert "native weights, native KV, float32: aligned" in output
    assert document["aligned"] is True
    assert {row["check"]: row["value"] for row in document["rows"]}["audio head top-1"] == 1
    monkeypatch.setattr("engine_runtime.bench.verify.LEAST_COSINE", 0.9999999)
    assert main([*words, "--weights", "int4", "--kv", "fp8"]) == 1
    output = capsys.readouterr().out
    assert "int4 weights, fp8 KV, float32: not aligned" in output
    assert json.loads(output.splitlines()[-1])["weights"] == "int4"


@pytest.mark.slow
def test_the_speech_encoder_alone(
    tmp_path: Path, wavs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_golden_bundle(tmp_path / "bundle")
    words = ["verify", str(folder), "--encoder", "--wavs", str(wavs), "--json"]
    assert main(words) == 0
    output = capsys.readouterr().out
    assert "speech encoder: aligned" in output
    document = json.loads(output.splitlines()[-1])
    assert [row["before the speech"] for row in document["tables"]["streamed speech codes"]["rows"][::2]] == [
        "none",
        "zeros",
        "dither",
        "room",
        "turn",
    ]
    monkeypatch.setattr(
        "engine_runtime.codec.speech_tokenizer.features.MOST_DRIFT", 100.0
    )  # nothing is revised
    assert main(words) == 1
    output = capsys.readouterr().out
    assert "--exact-encoding encodes each turn again" in output
    assert json.loads(output.splitlines()[-1])["aligned"] is False


@pytest.mark.slow
def test_an_engine_is_held_against_torch_and_not_against_itself(
    engine_world: EngineWorld,
    random_bundle: Path,
    wavs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine_runtime.bench.verify.MOST_MEL", 10.0)  # of random networks
    folder = engine_world.build(random_bundle, tmp_path / "engine", linearised=100.0)
    words = ["verify", str(random_bundle), "--wavs", str(wavs), "--json"]
    assert main([*words, "--backend", "trtllm", "--engine", str(folder)]) == 1
    output = capsys.readouterr().out
    document = json.loads(output.splitlines()[-1])
    assert f"engine {folder}: not aligned" in output
    assert document["engine"] == str(folder)
    rows = {row["check"]: row for row in document["rows"]}
    assert rows["text head cosine"]["aligned"] == "yes"
    assert rows["audio head cosine"]["aligned"] == "no"


def test_a_folder_without_recordings(
    random_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(random_bundle), "--wavs", str(tmp_path)]) == 1
    assert "no WAV file" in capsys.readouterr().err
