"""How many conversations fit into the time of an engine."""

from __future__ import annotations

import pytest

from app.server.engine_load import USABLE, EngineLoad, measure_load
from engine_runtime.scheduler.scheduler import Scheduler
from tests.doubles.scripted_engine import Script, ScriptedEngine


@pytest.mark.parametrize(
    ("rtf", "speaking", "capacity"), [(0.1, 8, 72), (0.3, 1, 3), (USABLE, 1, 1), (2.0, 1, 1)]
)
def test_replies_at_once_without_a_gap(rtf: float, speaking: int, capacity: int) -> None:
    assert EngineLoad(rtf, rtf, speaking).capacity == capacity


def test_more_replies_are_made_at_once_as_long_as_twice_as_many_fit() -> None:
    fast = ScriptedEngine(Script(chunks=1, chunk_s=30.0))
    load = measure_load(fast, Scheduler(), 12)  # type: ignore[arg-type]
    assert load.speaking == 8, "at most 12"
    assert load.capacity > 8
    assert fast.conversations == len(fast.ended) == 1 + 2 + 4 + 8
    slow = measure_load(ScriptedEngine(Script(chunks=1, chunk_s=0.001, step_s=0.01)), Scheduler(), 12)  # type: ignore[arg-type]
    assert (slow.speaking, slow.capacity) == (1, 1)
