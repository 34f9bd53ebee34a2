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
_GATED_STEP_S = 0.003
"""The same while the engine waits for something else than time; the end-of-turn detector can answer then."""


class SteppedClock(VirtualClock):
    """A step passes as soon as the engine is idle, or waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted_ns = 0
        """Set by the engine: the time that it waits for."""

    def _await_step(self, idle: threading.Event) -> None:
        longest_s = _GATED_STEP_S if self.wanted_ns == NEVER_NS else _LONGEST_STEP_S
        give_up_s = time.perf_counter() + longest_s
        while not idle.is_set() and not self._has_time_for_engine() and time.perf_counter() < give_up_s:
            idle.wait(_LOOK_S)

    def _has_time_for_engine(self) -> bool:
        return self._now_ns < self.wanted_ns < NEVER_NS
