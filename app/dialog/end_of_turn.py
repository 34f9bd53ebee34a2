"""How long to wait at a pause: what detector and language model say of it, and the silence that this
requires.

In: the probabilities of the end-of-turn detector and of the language model, and the chosen eagerness. Out: a
stage, and the silence after which the turn is committed. Pure; any thread, a `VoiceCalibration` in one. The
wait falls with the log-odds: silence makes it likelier that the user has finished, and the less finished the
turn sounds, the more silence it takes. The values come from the curves of tests/tools/pause_bench.py.
"""

from __future__ import annotations

import math
from collections import deque
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
    """The user is probably searching for the next word: wait."""
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
    (`TurnEndFusion`)."""

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


@dataclass(frozen=True, slots=True)
class TurnEndFusion:
    """Weighs the language model's answer about a pause with that of the detector.

        language model   detector              the turn is committed
        finished         `agrees` or more      after the policy's `agreed_ms`
        surely finished  none                  the same
        finished         `veto` or more        after the shortest wait of the policy
        finished         none                  the same
        finished         less than `veto`      as the detector decides
        unfinished       anything              after `unfinished_ms`
        unsure or none   anything              as the detector decides

    The language model knows what was said, the detector how it was said: "three plus" is unfinished however
    it sounds, and a voice that the detector does not know sounds unfinished whatever it says.
    """

    finished: float = 0.7
    """Probability of the language model from which on the user has finished."""
    sure: float = 0.95
    """The same from which on the detector, which takes longer than the wait on a slow CPU, is not awaited."""
    unfinished: float = 0.1
    """Probability up to which the user has not finished; in between the detector decides."""
    veto: float = 0.1
    """Probability of the detector below which a "finished" of the language model is not believed."""
    agrees: float = 0.5
    """Probability of the detector from which on both agree that the user has finished."""
    unfinished_ms: int = 2_200
    """Silence after which the user gets an answer although the language model would wait; 3 s in Pipecat."""

    def __post_init__(self) -> None:
        said, heard = (
            [0.0, self.unfinished, self.finished, self.sure, 1.0],
            [0.0, self.veto, self.agrees, 1.0],
        )
        if said != sorted(said) or heard != sorted(heard):
            raise ValueError(
                "need 0 <= unfinished <= finished <= sure <= 1 and 0 <= veto <= agrees <= 1, "
                f"got {said[1:-1]} and {heard[1:-1]}"
            )
        if self.unfinished_ms <= 0:
            raise ValueError(f"unfinished_ms must be positive, got {self.unfinished_ms}")

    def stage(self, policy: EndOfTurnPolicy, rated: float | None, predicted: float | None) -> Stage | None:
        """The stage of a pause: `rated` by the detector, `predicted` by the language model. None while
        neither has answered, and if only the language model has and is not sure."""
        heard = None if rated is None else policy.stage(rated)
        said = None if predicted is None else self.verdict(predicted)
        is_vetoed = rated is not None and rated < self.veto
        if said is Stage.FINISHED and (heard is Stage.LIKELY or is_vetoed):
            return heard
        return heard if said in (None, Stage.POSSIBLE) else said

    def verdict(self, predicted: float) -> Stage:
        """The verdict of the language model; `POSSIBLE` if it is not sure."""
        if predicted >= self.finished:
            return Stage.FINISHED
        return Stage.UNFINISHED if predicted <= self.unfinished else Stage.POSSIBLE

    def silence_ms(
        self, policy: EndOfTurnPolicy, rated: float | None, predicted: float | None, end_ms: int
    ) -> float:
        """The silence that commits the turn; `end_ms` as in `EndOfTurnPolicy.silence_ms`."""
        stage = self.stage(policy, rated, predicted)
        if stage is Stage.UNFINISHED:
            return max(self.unfinished_ms, policy.unlikely_ms, end_ms)
        if self._is_agreed(rated, predicted):
            return min(policy.agreed_ms, policy.likely_ms, end_ms)
        if stage is Stage.FINISHED:
            return min(policy.likely_ms, end_ms)
        return policy.silence_ms(rated, end_ms)

    def _is_agreed(self, rated: float | None, predicted: float | None) -> bool:
        """Whether nothing contradicts the shortest wait of all."""
        if predicted is None or predicted < self.finished:
            return False
        return predicted >= self.sure if rated is None else rated >= self.agrees


_EXPECTED = 2.5
"""Mean log-odds of the finished turns of a voice that needs no correction."""
_PRIOR_TURNS = 1
"""This expectation counts as much as this many turns of the voice."""
_MOST_TURNS = 8
"""Only this many of the latest turns count."""
_LARGEST_SHIFT = 3.0


class VoiceCalibration:
    """A correction of the detector for one voice, learned through a conversation.

    The finished turns of some voices, synthetic ones above all, are rated low throughout. How low is learned
    from them: the log-odds are raised by what their mean lies below that of a clear voice. A voice that is
    rated high needs no correction.

    A turn that was committed is confirmed by a reply that was heard and not interrupted. If the user
    continued or took the turn, the commit may have been a mistake, and nothing is learned from it.
    """

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
