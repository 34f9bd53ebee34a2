"""Weighs the language model's answer about a pause with that of the end-of-turn detector.

In: the probability that the user has finished, of the detector (calibrated) and of the language model, each
as far as it is known. Out: a stage, and the silence that commits the turn. Pure; any thread.

    language model   detector              the turn is committed
    finished         `agrees` or more      after the policy's `agreed_ms`
    surely finished  none                  the same
    finished         `veto` or more        after the shortest wait of the policy
    finished         none                  the same
    finished         less than `veto`      as the detector decides
    unfinished       anything              after `unfinished_ms`
    unsure or none   anything              as the detector decides

The language model knows what was said, the detector how it was said: "three plus" is unfinished however it
sounds, and a voice that the detector does not know sounds unfinished whatever it says.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.dialog.end_of_turn import EndOfTurnPolicy, Stage


@dataclass(frozen=True, slots=True)
class TurnEndFusion:
    """The thresholds of both, and the longest wait."""

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
