"""Export refusals, and the comparison of a file with torch."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from engine_runtime.codec.graph import Graph, GraphTensor
from engine_runtime.errors import EngineError, ExecutorError
from engine_runtime.tensorrt.codec.export import (
    check_onnx,
    export_onnx,
    export_without_weights,
    times_against_torch,
)
from tests.factories.graphs import Exported, scaled_sum


@pytest.mark.slow
def test_a_file_of_other_weights_is_noticed(exported: Exported) -> None:
    graph = scaled_sum()
    file = exported("scaled_sum", graph)
    assert check_onnx(graph, file) <= 1e-6
    with pytest.raises(ExecutorError, match="output y differs from torch's"):
        check_onnx(scaled_sum(factor=2.1), file)


@pytest.mark.slow
def test_both_are_timed(exported: Exported) -> None:
    graph = scaled_sum()
    times = times_against_torch(graph, exported("scaled_sum", graph), repeats=3)
    assert all(0 < milliseconds < 1000 for milliseconds in times)


@pytest.mark.slow
def test_without_weights_it_has_only_their_names(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("first.onnx", "other_weights.onnx")]
    for file, factor in zip(files, (2.0, 7.0), strict=True):
        export_without_weights(scaled_sum(factor), file)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert b"factor" in files[0].read_bytes()
    assert str(Path(__file__).parents[4]).encode() not in files[0].read_bytes()


@pytest.mark.slow
def test_what_torch_cannot_export_is_said_in_one_sentence(tmp_path: Path) -> None:
    class ReadsBack(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (x if x.sum().item() > 0 else -x,)

    spec = GraphTensor("x", (1, 4))
    graph = Graph("reader", ReadsBack(), (spec,), (GraphTensor("y", (1, 4)),))
    with pytest.raises(EngineError, match="The reader of this bundle cannot be exported"):
        export_onnx(graph, tmp_path / "reader.onnx")


def test_without_the_packages_it_says_which(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EngineError, match=r"needs onnx and onnxscript.*moss-voice\[trt-codec\]"):
        export_onnx(scaled_sum(), tmp_path / "x.onnx")
