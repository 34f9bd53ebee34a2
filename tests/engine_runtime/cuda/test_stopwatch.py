from __future__ import annotations

import time

import pytest
import torch

from engine_runtime.cuda.stopwatch import Stopwatch, rounds_ms, times_ms

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, in one place."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_each_call_of_a_round_has_its_times_without_those_of_the_warm_up(clock: list[float]) -> None:
    rounds = 0

    def take(seconds: float) -> str:
        clock[0] += seconds
        return f"{seconds:g} s"

    def run(watch: Stopwatch) -> list[str]:
        nonlocal rounds
        rounds += 1
        first = watch.time(lambda: take(rounds))
        clock[0] += 100  # between the calls
        return [first, watch.time(lambda: take(0.5))]

    times, last = rounds_ms(run, CPU, repeats=2, warm_up=1)
    assert times == [[2000.0, 3000.0], [500.0, 500.0]]
    assert last == ["3 s", "0.5 s"]


def test_the_first_calls_are_not_measured(clock: list[float]) -> None:
    calls = iter([9.0, 1.0, 2.0])

    def run() -> None:
        clock[0] += next(calls)

    assert times_ms(run, CPU, repeats=2) == [1000.0, 2000.0]
