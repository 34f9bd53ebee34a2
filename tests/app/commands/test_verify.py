from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.cli import main
from engine_runtime.bench import predicted_mos, word_errors
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.hardware import AcceleratorError
from engine_runtime.options import EngineOptions
from tests.factories.engine_folder import EngineWorld
from tests.factories.golden_encoder import make_golden_bundle

QUESTION = Path(__file__).resolve().parents[2] / "data" / "speech" / "question.wav"


@pytest.fixture
def wavs(tmp_path: Path) -> Path:
    folder = tmp_path / "wavs"
    folder.mkdir()
    shutil.copy(QUESTION, folder / "q.WAV")
    return folder


def asked(wavs: Path) -> list[str]:
    """Options with few questions."""
    texts = wavs / "texts.txt"
    texts.write_text("What is that?\n", encoding="utf-8")
    return ["--wavs", str(wavs), "--texts", str(texts), "--steps", "3", "2"]


@pytest.mark.slow
def test_the_verdict_is_said_and_is_the_exit_status(
    random_bundle: Path, wavs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine_runtime.bench.quality.MOST_MEL", 10.0)  # of random networks
    words = ["verify", str(random_bundle), *asked(wavs), "--json"]
    assert main(words) == 0
    output = capsys.readouterr().out
    document = json.loads(output.splitlines()[-1])
    assert "native weights, native KV, float32: aligned" in output
    assert document["aligned"] is True
    assert {row["check"]: row["value"] for row in document["rows"]}["native audio head top-1"] == 1
    assert "the plain network in float32, one layer at a time on cpu" in document["note"]
    monkeypatch.setattr("engine_runtime.bench.teacher_forcing.LEAST_COSINE", 0.9999999)
    assert main([*words, "--formats", "native", "int4", "--kv", "fp8"]) == 1
    output = capsys.readouterr().out
    assert "native, int4 weights, fp8 KV, float32: not aligned" in output
    document = json.loads(output.splitlines()[-1])
    assert document["formats"] == ["native", "int4"]
    quality = document["tables"]["quality"]["rows"]
    assert [(row["weights"], row["steps"]) for row in quality] == [
        (weights, steps) for weights in ("native", "int4") for steps in (3, 2)
    ]


@pytest.mark.slow
def test_quality_is_judged_by_whisper_and_a_predictor(
    random_bundle: Path,
    wavs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = iter(["one two", "one two", "one three", "one three"])  # two replies, at 3 and at 2 steps
    recognizer, folders = SimpleNamespace(words=lambda *_: next(heard)), list[Path]()
    monkeypatch.setattr(word_errors, "Recognizer", lambda folder: folders.append(folder) or recognizer)
    monkeypatch.setattr(predicted_mos, "MosPredictor", lambda: SimpleNamespace(score=lambda *_: 3.0))
    words = ["verify", str(random_bundle), *asked(wavs), "--whisper", str(tmp_path), "--json"]
    assert main(words) == 1
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert folders == [tmp_path]
    checks = {row["check"]: row["aligned"] for row in document["rows"]}
    assert checks["native, 2 steps: MOS lost"] == "yes"
    assert checks["native, 2 steps: word errors added"] == "no"
    assert [row["mos"] for row in document["tables"]["quality"]["rows"]] == [3.0, 3.0]


@pytest.mark.slow
def test_what_is_missing_for_quality_is_said(
    random_bundle: Path, wavs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distillmos", None)
    assert main(["verify", str(random_bundle), *asked(wavs), "--steps", "2"]) == 0
    output = capsys.readouterr().out
    assert "MOS not predicted: The predicted MOS needs Distill-MOS" in output
    assert "word errors not counted: give a Whisper model with --whisper DIR" in output
    monkeypatch.setitem(sys.modules, "faster_whisper", None)
    assert main(["verify", str(random_bundle), *asked(wavs), "--whisper", str(wavs)]) == 1
    assert "Whisper needs the package faster-whisper" in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_that_is_not_here_is_compared_with_random_weights(
    random_bundle: Path, wavs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("bundle.toml", "tokenizer.json"):
        (tmp_path / name).write_bytes((random_bundle / name).read_bytes())
    words = ["verify", str(tmp_path), "--random-weights", "0", *asked(wavs), "--steps", "2", "--json"]
    main(words)
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    checks = {row["check"]: row["value"] for row in document["rows"]}
    assert checks["native text head top-1"] == checks["native audio head top-1"] == 1
    assert document["tables"]["quality"]["rows"][0]["replies"] == 2


@pytest.mark.slow
def test_a_format_that_does_not_fit_leaves_the_others(
    random_bundle: Path, wavs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Engine.load.__func__  # type: ignore[attr-defined]

    def refuse(cls: type[Engine], bundle: Bundle, options: EngineOptions, **keywords: object) -> Engine:
        if options.weight_format == "native":
            raise AcceleratorError("The GPU has 12.0 GB for the model.", "Use --weights int8.")
        return load(cls, bundle, options, **keywords)

    monkeypatch.setattr(Engine, "load", classmethod(refuse))  # type: ignore[arg-type]
    words = ["verify", str(random_bundle), *asked(wavs), "--formats", "native", "int8", "--json"]
    assert main(words) == 1
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    checks = {row["check"]: row["aligned"] for row in document["rows"]}
    assert checks["native runs"] == "no"
    assert checks["int8 text head top-1"] == "yes"
    assert "native: The GPU has 12.0 GB" in document["note"]
    assert main(["verify", str(random_bundle), *asked(wavs)]) == 1
    assert "The GPU has 12.0 GB" in capsys.readouterr().err


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
def test_an_engine_is_held_against_the_reference(
    engine_world: EngineWorld,
    random_bundle: Path,
    wavs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine_runtime.bench.quality.MOST_MEL", 10.0)  # of random networks
    folder = engine_world.build(random_bundle, tmp_path / "engine", linearised=100.0)
    words = ["verify", str(random_bundle), *asked(wavs), "--json"]
    assert main([*words, "--backend", "trtllm", "--engine", str(folder)]) == 1
    output = capsys.readouterr().out
    document = json.loads(output.splitlines()[-1])
    assert f"engine {folder}: not aligned" in output
    assert document["engine"] == str(folder)
    rows = {row["check"]: row for row in document["rows"]}
    assert rows["trtllm text head cosine"]["aligned"] == "yes"
    assert rows["trtllm audio head cosine"]["aligned"] == "no"


def test_a_folder_without_recordings(
    random_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(random_bundle), "--wavs", str(tmp_path)]) == 1
    assert "no WAV or FLAC file" in capsys.readouterr().err


@pytest.mark.slow
def test_kernel_paths_are_compared_with_plain_torch(
    random_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(random_bundle), "--kernel-paths", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    document = json.loads(lines[-1])
    assert lines[-2] == "kernels: aligned"
    assert document["aligned"] is True
    groups = {row["check"].partition(":")[0] for row in document["rows"]}
    paths = {"prefill", "decode alone", "decode beside other work", "decode of 8"}
    assert groups == paths | {"speech encoder", "flow", "vocoder"}
