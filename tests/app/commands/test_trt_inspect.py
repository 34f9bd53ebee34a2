from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import main
from tests.factories.engine_folder import EngineWorld


@pytest.mark.parametrize(("contract", "inputs"), [("1.x", 17), ("0.13", 15)])
def test_an_engine_is_described_by_its_files_and_by_itself(
    engine_world: EngineWorld,
    random_bundle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    contract: str,
    inputs: int,
) -> None:
    folder = engine_world.build(
        random_bundle, tmp_path / "engine", contract, tokens_per_block=64, max_batch_size=3
    )
    assert main(["trt", "inspect", str(folder), "--json"]) == 0
    output = capsys.readouterr().out
    document = json.loads(output.splitlines()[-1])
    assert (document["contract"], document["inputs"], document["outputs"]) == (contract, inputs, 2)
    assert (document["rows_of_a_conversation"], document["rows_of_a_call"]) == (1024, 128)
    assert document["conversations_of_a_call"] == 3
    assert document["kv_bytes_of_a_block"] == 4 * 2 * 2 * 64 * 16 * 4
    assert document["precision"] == "float32, K/V float32"
    assert document["bundle"] == "random"
    assert document["load_seconds"] >= 0
    tensors = {row["tensor"]: row for row in document["tensors"]}
    assert len(tensors) == inputs + 2
    assert tensors["cache_indirection"] == {
        "tensor": "cache_indirection",
        "direction": "in",
        "number": "int32",
        "shape": "-1x-1x-1",
        "least": "1x1x1",
        "best": "3x1x1024",
        "most": "3x1x1024",
    }
    assert tensors["audio_logits"]["shape"] == "-1x80"
    table = [line.split() for line in output.splitlines() if line.startswith(("tensor ", "logits "))]
    assert table == [
        ["tensor", "direction", "number", "shape", "least", "best", "most"],
        ["logits", "out", "float32", "-1x384"],
    ]
    assert engine_world.trt.live_contexts == 0


def test_files_alone_need_no_gpu(
    random_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        folder = EngineWorld(patch).build(random_bundle, tmp_path / "engine", with_provenance=False)
    assert main(["trt", "inspect", str(folder), "--files"]) == 0
    output = capsys.readouterr().out
    assert "rows of a block         32" in output
    assert "bundle                  -" in output
    assert main(["trt", "inspect", str(folder)]) == 1
    captured = capsys.readouterr()
    assert "rows of a block         32" in captured.out
    assert "runs on an NVIDIA GPU only" in captured.err


def test_a_folder_without_an_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trt", "inspect", str(tmp_path)]) == 1
    assert "holds no engine" in capsys.readouterr().err
