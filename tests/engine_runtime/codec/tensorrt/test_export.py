"""Export refusals, and the comparison of a file with torch."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from engine_runtime.codec.tensorrt.export import OnnxRunner, check_onnx, export_onnx, times_against_torch
from engine_runtime.codec.tensorrt.graph import Graph, TensorSpec
from engine_runtime.errors import ExecutorError
from engine_runtime.trtllm.runtime_library import TensorRTError
from tests.engine_runtime.codec.tensorrt.conftest import Exported, scaled_sum


def test_a_file_takes_every_size_of_its_range(exported: Exported) -> None:
    graph = scaled_sum()
    runner = OnnxRunner(graph, exported("scaled_sum", graph))
    for frames, past in ((2, 3), (8, 1), (5, 16)):
        inputs = (torch.randn(1, frames, 4), torch.randn(past, 4))
        torch.testing.assert_close(runner(*inputs), graph.module(*inputs))
    with pytest.raises(ExecutorError, match="input x"):
        runner(torch.randn(1, 9, 4), torch.randn(3, 4))


def test_a_file_of_other_weights_is_noticed(exported: Exported) -> None:
    graph = scaled_sum()
    file = exported("scaled_sum", graph)
    assert check_onnx(graph, file) <= 1e-6
    with pytest.raises(ExecutorError, match="output y differs from torch's"):
        check_onnx(scaled_sum(factor=2.1), file)


def test_both_are_timed(exported: Exported) -> None:
    graph = scaled_sum()
    times = times_against_torch(graph, exported("scaled_sum", graph), repeats=3)
    assert all(0 < milliseconds < 1000 for milliseconds in times)


def test_what_torch_cannot_export_is_said_in_one_sentence(tmp_path: Path) -> None:
    class ReadsBack(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (x if x.sum().item() > 0 else -x,)

    spec = TensorSpec("x", (1, 4))
    graph = Graph("reader", ReadsBack(), (spec,), (TensorSpec("y", (1, 4)),))
    with pytest.raises(TensorRTError, match="The reader of this bundle cannot be exported"):
        export_onnx(graph, tmp_path / "reader.onnx")


def test_without_the_packages_it_says_which(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TensorRTError, match=r"needs onnx and onnxscript.*moss-voice\[trt-codec\]"):
        export_onnx(scaled_sum(), tmp_path / "x.onnx")
