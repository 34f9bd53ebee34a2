"""Whether replies are made speculatively: not by an engine that could not keep up with the conversation.

In: real-time factors of replies, and how long the engine took to be ready again after a roll back. Out: yes,
or the reason why not. Pure logic. Dialog thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Literal

OffReason = Literal["setting", "server", "slow_engine", "slow_roll_back"]
"""setting: switched off; server: discarded replies would take the time of others; slow_engine: replies are
made slower than real time; slow_roll_back: the speech of a user who continues would wait for the engine."""
SLOW_RTF, FAST_RTF = 1.0, 0.8
"""Median real-time factor of the latest replies: nothing is speculated from the first on, again below the
second."""
SLOW_ROLL_BACK_MS = 100.0
"""Median delay from which on nothing is speculated."""
TRY_AGAIN_TURNS = 5
"""Turns after which slow roll backs are forgotten, because none is measured while nothing is speculated."""
_LATEST = 3


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Speculative replies of the session so far, and the cost of the discarded ones."""

    off_reason: OffReason | None = None
    """Why nothing is speculated at present."""
    speculated: int = 0
    confirmed: int = 0
    rolled_back: int = 0
    engine_ms: float = 0.0
    """Engine time spent on discarded replies, in milliseconds."""
    audio_s: float = 0.0
    """Speech that was discarded, in seconds."""
    steps: int = 0
    """Decode steps that were discarded."""
    roll_back_ms: float = 0.0
    """The longest time until the engine was ready for more speech after a roll back."""


class SpeculationPolicy:
    """Judges by the latest replies and roll backs; until there are any, the engine is trusted."""

    def __init__(self, *, is_remote: bool = False) -> None:
        """`is_remote`: a server makes the replies."""
        self._is_remote = is_remote
        self._rtf: deque[float] = deque(maxlen=_LATEST)
        self._roll_backs_ms: deque[float] = deque(maxlen=_LATEST)
        self._is_slow = False
        self._turns_since_roll_back = 0

    @property
    def off_reason(self) -> OffReason | None:
        """Why nothing should be speculated, None if it should."""
        if self._is_remote:
            return "server"
        if self._is_slow:
            return "slow_engine"
        too_late = len(self._roll_backs_ms) == _LATEST and median(self._roll_backs_ms) > SLOW_ROLL_BACK_MS
        return "slow_roll_back" if too_late else None

    def note_reply(self, rtf_total: float) -> None:
        """A reply was made, with this real-time factor."""
        self._rtf.append(rtf_total)
        typical = median(self._rtf)
        self._is_slow = typical >= (FAST_RTF if self._is_slow else SLOW_RTF)

    def note_roll_back(self, ready_ms: float) -> None:
        """A speculative reply was rolled back; the engine was ready for more speech after `ready_ms`."""
        self._roll_backs_ms.append(ready_ms)
        self._turns_since_roll_back = 0

    def note_turn(self) -> None:
        """A turn was committed."""
        self._turns_since_roll_back += 1
        if self._turns_since_roll_back >= TRY_AGAIN_TURNS:
            self._roll_backs_ms.clear()
