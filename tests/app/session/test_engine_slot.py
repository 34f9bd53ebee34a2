"""The way of a conversation that is held elsewhere."""

from __future__ import annotations

import threading
from typing import Any

from app.session.clocks import PendingWork
from app.session.engine_jobs import EngineLost, LoadFailed, Result
from app.session.engine_slot import SlotPort
from engine_runtime.errors import Problem

PROBLEM = Problem("The server is gone.", "Start it.")


def test_the_first_failure_ends_the_loading_and_later_ones_do_not() -> None:
    pending, results = PendingWork(), list[Result]()
    slot: Any = None
    port = SlotPort(slot, threading.Condition(), pending, results.append, lambda timing: None)
    pending.begin()
    port.fail(PROBLEM)
    assert pending.idle.is_set()
    pending.begin()
    port.fail(PROBLEM)
    assert not pending.idle.is_set()
    assert results == [LoadFailed(PROBLEM), EngineLost(PROBLEM)]
