"""Exported files: written, refused, run on onnxruntime with and without weights, compared with torch."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine_runtime.codec.graph import Graph, GraphTensor
from engine_runtime.codec.onnx_graph import (
    OnnxRunner,
    check_onnx,
    export_onnx,
    export_without_weights,
    times_against_torch,
)
from engine_runtime.errors import EngineError, ExecutorError
from engine_runtime.onnx_runtime import OnnxModelError
from tests.factories.graphs import Exported, difference_on_onnx, scaled_sum


@pytest.mark.slow
def test_a_file_of_other_weights_is_noticed(exported: Exported) -> None:
    graph = scaled_sum()
    file = exported("scaled_sum", graph)
    assert difference_on_onnx(graph, file) <= 1e-6
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
    assert str(Path(__file__).parents[3]).encode() not in files[0].read_bytes()


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


@pytest.fixture(scope="module")
def weightless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("weightless") / "scaled_sum.onnx"
    export_without_weights(scaled_sum(), file)
    return file


@pytest.mark.slow
def test_a_file_takes_every_size_of_its_range(exported: Exported) -> None:
    graph = scaled_sum()
    runner = OnnxRunner(graph, exported("scaled_sum", graph))
    for frames, past in ((2, 3), (8, 1), (5, 16)):
        inputs = (torch.randn(1, frames, 4), torch.randn(past, 4))
        torch.testing.assert_close(runner(*inputs), graph.module(*inputs))
    with pytest.raises(ExecutorError, match="input x"):
        runner(torch.randn(1, 9, 4), torch.randn(3, 4))


@pytest.mark.slow
@pytest.mark.parametrize("factor", [2.0, -0.5])
def test_a_file_without_weights_computes_with_those_it_is_given(weightless: Path, factor: float) -> None:
    graph = scaled_sum(factor)
    runner = OnnxRunner(graph, weightless.read_bytes(), weights=graph.module.state_dict())
    inputs = graph.examples("usual")
    torch.testing.assert_close(runner(*inputs), graph.module(*inputs))


@pytest.mark.slow
def test_weights_that_do_not_fit_are_refused(weightless: Path) -> None:
    graph, weight = scaled_sum(), torch.ones(1)
    for weights in ({}, {"factor": torch.ones(2)}, {"other": weight}, {"factor": weight, "other": weight}):
        with pytest.raises(OnnxModelError):
            OnnxRunner(graph, weightless.read_bytes(), weights=weights)


@pytest.mark.slow
def test_a_file_with_other_inputs_is_refused_when_it_runs(exported: Exported) -> None:
    graph = scaled_sum()
    file = exported("scaled_sum", graph)
    renamed = replace(graph, inputs=tuple(replace(spec, name=f"my_{spec.name}") for spec in graph.inputs))
    with pytest.raises(ExecutorError, match="onnxruntime cannot run the scaled_sum"):
        OnnxRunner(renamed, file)(*graph.examples("usual"))
