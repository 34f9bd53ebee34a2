"""Captured calls: the functions themselves without a CUDA device, the same results with one."""

from __future__ import annotations

import gc
import logging
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from engine_runtime.cuda.graphs import GraphedCalls, captured
from tests.doubles.graphs import EmulatedCalls


def test_without_a_device_the_function_itself_runs() -> None:
    calls, seen = GraphedCalls("cpu"), []

    def double(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return 2 * x

    value = torch.ones(3)
    assert torch.equal(calls.run("double", double, value), 2 * value)
    assert seen[0] is value
    assert (calls.num_captured, calls.is_capturing) == (0, False)
    assert calls.has_graph("another")  # nothing is to be captured


def test_copied_outputs_outlive_the_next_call() -> None:
    calls = EmulatedCalls()

    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return 2 * x, x + 1

    first = calls.run_copied("both", both, torch.ones(2))
    alone = calls.run_copied("alone", torch.neg, torch.ones(2))
    calls.run("both", both, torch.zeros(2))
    calls.run("alone", torch.neg, torch.zeros(2))
    assert [value.tolist() for value in (*first, alone)] == [[2.0, 2.0], [2.0, 2.0], [-1.0, -1.0]]


@pytest.fixture
def warm_ups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Runs before each capture, in place of captures."""
    runs: list[int] = []

    def capture_graph(*given: Any) -> SimpleNamespace:
        runs.append(given[-1])
        return SimpleNamespace(graph=SimpleNamespace(replay=lambda: None), inputs=(), outputs=None)

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(GraphedCalls, "_capture_graph", capture_graph)
    return runs


def capturing() -> GraphedCalls:
    calls = GraphedCalls("cpu")
    calls.is_capturing = True
    return calls


def test_discarded_graphs_are_captured_again(warm_ups: list[int]) -> None:
    calls, keys = capturing(), [("one", 1), ("one", 2), ("other", 1)]
    for key in keys:
        calls.run(key, torch.empty)
    calls.forget(lambda key: key == ("one", 1))
    assert [calls.has_graph(key) for key in keys] == [False, True, True]
    for key in keys:
        calls.run(key, torch.empty)
    assert (len(warm_ups), calls.num_captured) == (4, 3)


def test_the_first_call_of_a_kind_alone_is_run_before_its_capture(warm_ups: list[int]) -> None:
    calls = capturing()
    for key, kind in enumerate(("small", "small", "large", None, None)):
        calls.run(key, torch.empty, kind=kind)
    assert warm_ups == [2, 0, 2, 2, 2]


def test_without_memory_for_a_capture_the_function_itself_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    calls, total, tried = capturing(), torch.zeros(2), []

    def add(x: torch.Tensor) -> torch.Tensor:
        return total.add_(x).clone()

    def capture_graph(function: Any, inputs: Any, *_: Any) -> Any:
        tried.append(function(*inputs))  # as far as the warm-up came
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(calls, "_capture_graph", capture_graph)
    with caplog.at_level(logging.INFO):
        outputs = [calls.run("add", add, torch.ones(2), changes=(total,)) for _ in range(3)]
    assert [output.tolist() for output in outputs] == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    assert (len(tried), calls.num_captured) == (1, 0)
    assert not calls.has_graph("add")
    assert "one by one" in caplog.text


@pytest.mark.parametrize("collects", [False, True])
def test_a_capture_is_not_disturbed_by_the_collector(monkeypatch: pytest.MonkeyPatch, collects: bool) -> None:
    seen = []

    def graph(*given: Any, **options: Any) -> Any:
        seen.append(gc.isenabled())
        return nullcontext()

    def make() -> None:
        with captured(cast(torch.cuda.CUDAGraph, object())):
            seen.append(gc.isenabled())
            raise ValueError("as a function may")

    monkeypatch.setattr(torch.cuda, "graph", graph)
    was_on = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        with pytest.raises(ValueError, match="as a function may"):
            make()
        assert seen == [False, False]
        assert gc.isenabled() == collects
    finally:
        (gc.enable if was_on else gc.disable)()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_graphs_among_the_garbage_do_not_spoil_a_capture() -> None:
    class Engine:
        def __init__(self) -> None:
            self.calls, self.itself = GraphedCalls("cuda"), self

    def add_and_litter(x: torch.Tensor) -> torch.Tensor:
        litter: list[Any] = [[index] for index in range(200_000)]  # the collector would run many times
        return x + len(litter)

    given = torch.ones(4, device="cuda")
    for index in range(3):
        engine = Engine()
        engine.calls.run("double", given.mul, torch.full((4,), 2.0, device="cuda"))
        del engine
        out = GraphedCalls("cuda").run(index, add_and_litter, given)
        assert out.tolist() == [200_001.0] * 4


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
    assert calls.num_captured == 1


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_what_a_capture_reads_stays() -> None:
    class Owner:
        def __init__(self) -> None:
            self.factor = torch.full((1 << 20,), 3.0, device="cuda")

        def times(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

    calls, owner, given = GraphedCalls("cuda"), Owner(), torch.ones(1 << 20, device="cuda")
    calls.run("times", owner.times, given)
    del owner
    others = [torch.full((1 << 20,), -1.0, device="cuda") for _ in range(4)]  # would lie in its place
    assert float(calls.run("times", given.mul, given).min()) == 3.0
    assert len(others) == 4
