"""Exported files on onnxruntime, with their weights and without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine_runtime.codec.onnx_runner import OnnxRunner
from engine_runtime.errors import ExecutorError
from engine_runtime.onnx_runtime import OnnxModelError
from engine_runtime.tensorrt.codec.export import export_without_weights
from tests.factories.graphs import Exported, scaled_sum


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
