"""End-of-turn policy: maps the detector's probability to the silence after which a turn is committed.

In: a probability, and the chosen eagerness. Out: a stage, and the silence that it requires. Pure; any thread.

Longer silence raises the probability, even in mid-sentence. So the first answer, soon after the pause began,
selects the stage; a later one can only end the wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from app.settings import Eagerness


class Stage(str, Enum):
    """How a pause sounds."""

    LIKELY = "likely"
    """The user has probably finished: commit almost at once."""
    POSSIBLE = "possible"
    """Open: commit after the silence that ends a turn without a detector."""
    UNLIKELY = "unlikely"
    """The user probably thinks about the next word: wait."""


@dataclass(frozen=True, slots=True)
class EndOfTurnPolicy:
    """Thresholds of the probability, and the silence in milliseconds that the stages ask for."""

    likely: float
    possible: float
    likely_ms: int
    unlikely_ms: int

    def stage(self, probability: float) -> Stage:
        """The stage of a pause with this probability."""
        if probability >= self.likely:
            return Stage.LIKELY
        return Stage.POSSIBLE if probability >= self.possible else Stage.UNLIKELY

    def silence_ms(self, stage: Stage | None, end_ms: int) -> int:
        """The silence that commits the turn; `end_ms` ends it without a detector, and while none has
        answered (stage None)."""
        if stage is Stage.LIKELY:
            return min(self.likely_ms, end_ms)
        return max(self.unlikely_ms, end_ms) if stage is Stage.UNLIKELY else end_ms


POLICIES: dict[Eagerness, EndOfTurnPolicy | None] = {
    "off": None,
    "patient": EndOfTurnPolicy(likely=0.97, possible=0.88, likely_ms=450, unlikely_ms=2_500),
    "balanced": EndOfTurnPolicy(likely=0.90, possible=0.70, likely_ms=250, unlikely_ms=2_000),
    "eager": EndOfTurnPolicy(likely=0.80, possible=0.50, likely_ms=200, unlikely_ms=1_200),
}
"""By eagerness; "off" asks no detector."""
DEFAULT_EAGERNESS: Eagerness = "balanced"
