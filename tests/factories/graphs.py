"""Exported parts of the codec: a small graph, and what a test asks for the file of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from engine_runtime.codec.graph import Axis, Graph, GraphTensor
from engine_runtime.codec.onnx_graph import check_onnx

Exported = Callable[[str, Graph], Path]


def difference_on_onnx(graph: Graph, file: Path) -> float:
    """What `check_onnx` finds for a graph that onnxruntime can run."""
    difference = check_onnx(graph, file)
    assert difference is not None
    return difference


class ScaledSum(nn.Module):
    """A small network with a cache: what is new, scaled, plus the sum of the past."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([factor]), requires_grad=False)

    def forward(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        return self.factor * x + past.sum(dim=0), torch.cat((past, x[0]))


def scaled_sum(factor: float = 2.0) -> Graph:
    frames, past = Axis("frames", 2, 4, 8), Axis("past", 1, 4, 16)
    return Graph(
        "scaled_sum",
        ScaledSum(factor),
        (GraphTensor("x", (1, frames, 4)), GraphTensor("past", (past, 4))),
        (GraphTensor("y", (1, frames, 4)), GraphTensor("kept", (past + frames, 4))),
    )
