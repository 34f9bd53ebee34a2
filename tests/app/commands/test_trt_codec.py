"""moss-voice trt codec: arguments and output. The graphs are tested with the engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app import paths
from app.cli import build_parser
from engine_runtime.errors import MossVoiceError
from engine_runtime.tensorrt import library as runtime_library
from engine_runtime.tensorrt.codec import engines
from engine_runtime.tensorrt.codec.engines import EngineReport


def command(*words: str) -> int:
    arguments = build_parser().parse_args(["trt", "codec", *words])
    return int(arguments.run(arguments))


def test_without_a_gpu_it_asks_which_one(random_bundle: Path) -> None:
    with pytest.raises(MossVoiceError, match=r"--compute-capability 8\.9 for an RTX 4090"):
        command("--bundle", str(random_bundle))


def test_it_prints_a_line_for_each_engine(
    random_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(engines, "EngineStore", lambda folder: folder)

    def build(codec: engines.Codec, store: Path, library: str, capability: str) -> Iterator[Any]:
        asked.extend((library, capability, store))
        for graph in codec.graphs():
            yield graph, b"", EngineReport(graph.name, "double", capability, 0.0, 1.0, 2.0, 3, "hash")

    monkeypatch.setattr(engines, "build_engines", build)
    monkeypatch.setattr(runtime_library, "runtime_library", lambda: "double")
    words = ["--bundle", str(random_bundle), "--compute-capability", "8.9", "--json"]
    assert command(*words) == 0
    assert asked == ["double", "8.9", paths.engines_dir()]
    *lines, document = capsys.readouterr().out.splitlines()
    names = [engine["name"] for engine in json.loads(document)["engines"]]
    assert names == ["estimator", "speech_encoder", "vocoder_start", "vocoder"]
    assert [line.split()[1] for line in lines] == names
    assert "plan_bytes 3" in lines[0]
    assert command(*words, "--engines", str(tmp_path)) == 0
    assert asked[-1] == tmp_path


def test_onnx_files_are_written_and_compared(
    random_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(engines, "export_onnx", lambda graph, file: file.write_bytes(b"graph"))
    monkeypatch.setattr(engines, "check_onnx", lambda graph, file: 1e-6)
    monkeypatch.setattr(engines, "times_against_torch", lambda graph, file: (2.0, 3.0))
    assert command("--bundle", str(random_bundle), "--onnx", str(tmp_path / "onnx")) == 0
    assert len(list((tmp_path / "onnx").glob("*.onnx"))) == 4
    assert "difference 1e-06  torch_ms 2.0  onnxruntime_ms 3.0" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("--onnx",), ("--compute-capability", "8.9", "--engines")])
def test_a_folder_that_cannot_be_written_is_said_before_any_work(
    words: tuple[str, ...], random_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(engines, "load_codec", lambda *given: pytest.fail("the codec was loaded"))
    with pytest.raises(MossVoiceError, match="cannot be written to"):
        command("--bundle", str(random_bundle), *words, str(tmp_path / "file"))
