"""How finished the turns of this voice sound: a correction of the end-of-turn detector. Pure; dialog thread.

In: the detector's probabilities, and which committed turns turned out to be finished. Out: the probability
after the correction. The finished turns of some voices, synthetic ones above all, are rated low throughout.
How low is learned from them: the log-odds are raised by what their mean lies below that of a clear voice. A
voice that is rated high needs no correction.

A turn that was committed is confirmed by a reply that was heard and not interrupted. If the user continued
or took the turn, the commit may have been a mistake, and nothing is learned from it.
"""

from __future__ import annotations

from collections import deque

from app.dialog.end_of_turn import log_odds, probability_of

_EXPECTED = 2.5
"""Mean log-odds of the finished turns of a voice that needs no correction."""
_PRIOR_TURNS = 1
"""This expectation counts as much as this many turns of the voice."""
_MOST_TURNS = 8
"""Only this many of the latest turns count."""
_LARGEST_SHIFT = 3.0


class VoiceCalibration:
    """Follows one voice through a conversation."""

    def __init__(self) -> None:
        self._confirmed: deque[float] = deque(maxlen=_MOST_TURNS)
        self._committed: float | None = None

    @property
    def shift(self) -> float:
        """Correction added to the log-odds, 0 to 3."""
        missing = sum(_EXPECTED - score for score in self._confirmed)
        return min(max(missing / (len(self._confirmed) + _PRIOR_TURNS), 0.0), _LARGEST_SHIFT)

    def apply(self, probability: float) -> float:
        """The detector's `probability` after the correction."""
        shift = self.shift
        return probability_of(log_odds(probability) + shift) if shift else probability

    def commit(self, probability: float | None) -> None:
        """A turn was committed at a pause that the detector gave this `probability`, None for no answer."""
        self._committed = None if probability is None else log_odds(probability)

    def confirm(self) -> None:
        """The turn that was committed last, if it is not withdrawn, was finished."""
        if self._committed is not None:
            self._confirmed.append(self._committed)
        self._committed = None

    def withdraw(self) -> None:
        """Learn nothing from the latest turn: it may not have been finished."""
        self._committed = None
