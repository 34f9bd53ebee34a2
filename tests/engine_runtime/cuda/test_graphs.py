"""Recorded calls: the functions themselves without a CUDA device, the same results with one."""

from __future__ import annotations

import pytest
import torch

from engine_runtime.cuda.graphs import GraphedCalls


def test_without_a_device_the_function_itself_runs() -> None:
    calls, seen = GraphedCalls("cpu"), []

    def double(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return 2 * x

    value = torch.ones(3)
    assert torch.equal(calls.run("double", double, value), 2 * value)
    assert seen[0] is value
    assert (calls.num_recordings, calls.is_recording) == (0, False)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_replays_equal_the_function_and_keep_its_state() -> None:
    calls = GraphedCalls("cuda")
    total = torch.zeros(4, device="cuda")

    def add(x: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        return total * 2

    with torch.inference_mode():
        for index in range(1, 4):
            given = torch.full((4,), float(index))
            out = calls.run("add", add, given, changes=(total,)).clone()
            assert torch.equal(out.cpu(), torch.full((4,), 2.0 * sum(range(1, index + 1))))
    assert calls.num_recordings == 1
