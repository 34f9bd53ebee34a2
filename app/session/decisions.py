"""The decisions of turn-taking as timing events without length, for trace, report and log. Dialog thread."""

from __future__ import annotations

import time
from typing import Literal

from app.session.clocks import Clock
from engine_runtime.timing import TimingBus

DecisionKind = Literal[
    "pause", "speculate", "predict", "confirm", "roll_back", "interrupt", "resume", "cut", "ignore"
]


class Decisions:
    """Reports each decision, stamped by the session's clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.timing = TimingBus()
        """The engine's bus once it is loaded."""

    def report(self, kind: DecisionKind, turn_id: int, **details: float | int | str) -> None:
        """One decision about a turn, now."""
        at_s = self._clock.now_ns() / 1e9
        self.timing.emit("decision", turn_id, time.perf_counter_ns(), 0, kind=kind, at_s=at_s, **details)
