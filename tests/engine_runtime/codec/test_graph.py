"""Variable sizes, and rejected descriptions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from engine_runtime.codec.graph import Axis, Graph, GraphTensor, packet_axis
from engine_runtime.errors import ExecutorError

N = Axis("n", 2, 4, 8)
PAST = Axis("past", 1, 16, 64)


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (2.0 * x,)


GRAPH = Graph("doubled", Doubled(), (GraphTensor("x", (1, N)),), (GraphTensor("y", (1, N)),))


def test_sizes_are_sums_of_axes() -> None:
    spec = GraphTensor("mask", (N, 4 * N + PAST + 1, 3))
    assert spec.at("least") == (2, 10, 3)
    assert spec.at("usual") == (4, 33, 3)
    assert spec.at("most") == (8, 97, 3)
    assert spec.engine_shape == (-1, -1, 3)
    assert ((N + (-1)) * 480).at("most") == 3360


def test_packets_leave_their_axis_open() -> None:
    assert packet_axis([20, 20]) == (20, 20, 40)
    assert packet_axis([20, 20, 40, 100], before=8) == (28, 48, 108)


def test_an_engine_may_leave_the_size_of_an_output_open() -> None:
    spec = GraphTensor("rows", (1, 2, N))
    assert spec.agrees((1, 2, -1), is_output=False)
    assert spec.agrees((1, -1, -1), is_output=True)
    assert not spec.agrees((1, -1, -1), is_output=False)
    assert not spec.agrees((1, 2, 4), is_output=True)
    assert not spec.agrees((2, -1), is_output=True)


@pytest.mark.parametrize(
    "value", [torch.zeros(1, 9), torch.zeros(1, 1), torch.zeros(4), torch.zeros(1, 4, dtype=torch.float16)]
)
def test_inputs_outside_of_the_range_are_refused(value: torch.Tensor) -> None:
    assert not GRAPH.fits((value,))
    with pytest.raises(ExecutorError, match=r"doubled: input x is .* built for torch.float32 \[1, 2\]"):
        GRAPH.check_inputs((value,))


def test_a_missing_input_is_refused() -> None:
    with pytest.raises(ExecutorError, match="takes 1 tensors, got 2"):
        GRAPH.check_inputs((torch.zeros(1, 4), torch.zeros(1, 4)))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.ones(1, 5), "output y is"),
        (torch.full((1, 4), 1.01), "differs from torch's by 0.01"),
        (torch.full((1, 4), float("nan")), "differs from torch's by nan"),
    ],
)
def test_wrong_outputs_are_named(value: torch.Tensor, text: str) -> None:
    with pytest.raises(ExecutorError, match=text):
        GRAPH.check_outputs([value], [torch.ones(1, 4)])


def test_the_difference_is_a_share_of_the_largest_value() -> None:
    want = torch.tensor([[0.0, 100.0]])
    assert GRAPH.check_outputs([want + 0.01], [want]) == pytest.approx(1e-4, rel=1e-2)
    lower = Graph("lower", Doubled(), (GraphTensor("x", (1, N), torch.float16),), GRAPH.outputs)
    assert lower.allowed == pytest.approx(30 * GRAPH.allowed)


def test_examples_are_the_same_every_time() -> None:
    (first,), (second,) = GRAPH.examples("usual"), GRAPH.examples("usual")
    assert torch.equal(first, second)
    assert first.shape == (1, 4)
