"""The virtual clock of session tests: other programs on the machine do not make the scripted engine late."""

from __future__ import annotations

import threading
import time

from app.session.clocks import VirtualClock

NEVER_NS = 1 << 62
"""`wanted_ns` of an engine that waits for something else than time."""
_LOOK_S = 0.0005
_LONGEST_STEP_S = 0.1
"""Real time after which a step passes although something still works."""


class SteppedClock(VirtualClock):
    """A step passes as soon as the engine is idle, or waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted_ns = 0
        """Set by the engine: the time that it waits for."""

    def _await_step(self, idle: threading.Event) -> None:
        give_up_s = time.perf_counter() + _LONGEST_STEP_S
        while not idle.is_set() and self.wanted_ns <= self._now_ns and time.perf_counter() < give_up_s:
            idle.wait(_LOOK_S)
