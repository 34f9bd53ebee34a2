"""End-of-turn policy: maps the detector's probability to the silence after which a turn is committed.

In: a probability, and the chosen eagerness. Out: a stage, and the silence that it requires. Pure; any thread.
The wait falls with the log-odds: each moment of silence makes it likelier that the user has finished, and
the less so it sounds, the more of them it takes. The values come from the curves of
tests/tools/pause_bench.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np

from app.settings import Eagerness


class Stage(str, Enum):
    """How a pause sounds."""

    LIKELY = "likely"
    """The user has probably finished: commit almost at once."""
    POSSIBLE = "possible"
    """Open: the more likely, the shorter the wait."""
    UNLIKELY = "unlikely"
    """The user probably thinks about the next word: wait."""
    FINISHED = "finished"
    """The language model has an answer: commit almost at once."""
    UNFINISHED = "unfinished"
    """The language model has none yet: wait long."""


@dataclass(frozen=True, slots=True)
class EndOfTurnPolicy:
    """Two thresholds of the probability, and the silence in milliseconds that they ask for."""

    likely: float
    likely_ms: int
    unlikely: float
    unlikely_ms: int
    agreed_ms: int = 224
    """Silence that suffices where the language model has an answer and the detector agrees that it is due
    (app/dialog/turn_end_fusion.py)."""

    def stage(self, probability: float) -> Stage:
        """The stage of a pause with this probability."""
        if probability >= self.likely:
            return Stage.LIKELY
        return Stage.POSSIBLE if probability > self.unlikely else Stage.UNLIKELY

    def silence_ms(self, probability: float | None, end_ms: int) -> float:
        """The silence that commits the turn; `end_ms` ends it without a detector and while none has answered
        (None), and lies between the shortest and the longest wait otherwise."""
        if probability is None:
            return end_ms
        ends = [log_odds(self.unlikely), log_odds(self.likely)]
        waits_ms = [max(self.unlikely_ms, end_ms), min(self.likely_ms, end_ms)]
        return float(np.interp(log_odds(probability), ends, waits_ms))


_NEVER = 0.001


def log_odds(probability: float) -> float:
    """Logit of a probability, clipped away from 0 and 1."""
    kept = min(max(probability, _NEVER), 1.0 - _NEVER)
    return math.log(kept / (1.0 - kept))


def probability_of(score: float) -> float:
    """The probability with the log-odds `score`."""
    return 1.0 / (1.0 + math.exp(-score))


POLICIES: dict[Eagerness, EndOfTurnPolicy | None] = {
    "off": None,
    "patient": EndOfTurnPolicy(likely=0.97, likely_ms=450, unlikely=0.50, unlikely_ms=2_200, agreed_ms=352),
    "balanced": EndOfTurnPolicy(likely=0.95, likely_ms=350, unlikely=0.82, unlikely_ms=1_100),
    "eager": EndOfTurnPolicy(likely=0.90, likely_ms=250, unlikely=0.60, unlikely_ms=700),
}
"""Policies by eagerness; "off" asks no detector."""
DEFAULT_EAGERNESS: Eagerness = "balanced"
