"""What the user has said in the open turn: its extent, the present pause, and how finished that sounds.

In: speech and silence, frame by frame, the answers of end-of-turn detector and language model. Out: the
silence that ends the turn. Pure, with times in milliseconds of captured audio; used by turn_taking.
"""

from __future__ import annotations

from collections.abc import Iterator

from app.dialog.end_of_turn import Stage
from app.dialog.turn_events import TurnAction
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.dialog.voice_calibration import VoiceCalibration


class UserSpeech:
    """The speech of one turn after the other."""

    def __init__(self) -> None:
        self.start_ms = 0.0
        """Start of the first speech."""
        self.end_ms = 0.0
        """End of the latest speech."""
        self.speech_ms = 0.0
        """Speech without its gaps."""
        self.is_silent = False
        """Whether the silence was long enough for a speculative reply."""
        self.is_paused = False
        """Whether it was long enough for the detector."""
        self.rated: float | None = None
        """The detector's answer about the present pause, before calibration."""
        self.predicted: float | None = None
        """The language model's answer about the present pause."""

    def begin(self, start_ms: float, end_ms: float, speech_ms: float) -> None:
        """Begin the speech of another turn."""
        self.start_ms, self.end_ms, self.speech_ms = start_ms, end_ms, speech_ms
        self.end_pause()

    def add(self, start_ms: float, end_ms: float) -> bool:
        """Add a frame of speech; returns whether it ends a pause."""
        self.end_ms = end_ms
        self.speech_ms += end_ms - start_ms
        was_paused = self.is_paused
        self.end_pause()
        return was_paused

    def fall_silent(self, settings: TurnTakingSettings, silence_ms: float) -> Iterator[TurnAction]:
        """The silence since the latest speech; yields what it has just become."""
        if not self.is_silent and silence_ms >= settings.speculate_ms:
            self.is_silent = True
            yield TurnAction.SILENCE
        if not self.is_paused and silence_ms >= settings.pause_ms:
            self.is_paused = True
            yield TurnAction.PAUSE

    def end_pause(self) -> None:
        """Forget the answers about the pause."""
        self.is_silent = self.is_paused = False
        self.rated = self.predicted = None

    def rate(self, speech_end_ms: float, probability: float) -> bool:
        """The detector's answer about the pause after `speech_end_ms`; False if that is over."""
        is_present = self._is_present(speech_end_ms)
        self.rated = probability if is_present else self.rated
        return is_present

    def predict(self, speech_end_ms: float, probability: float) -> bool:
        """The same of the language model."""
        is_present = self._is_present(speech_end_ms)
        self.predicted = probability if is_present else self.predicted
        return is_present

    def _is_present(self, speech_end_ms: float) -> bool:
        return self.is_silent and speech_end_ms == self.end_ms

    def is_short(self, settings: TurnTakingSettings) -> bool:
        """Whether this is too little for a turn."""
        return self.speech_ms < settings.min_speech_ms

    def commit_after_ms(self, settings: TurnTakingSettings, calibration: VoiceCalibration) -> float:
        """Silence that commits the turn, by what is known so far."""
        policy = settings.policy
        if policy is None:
            return settings.end_ms
        rated = self._calibrated(calibration)
        return settings.fusion.silence_ms(policy, rated, self.predicted, settings.end_ms)

    def stage(self, settings: TurnTakingSettings, calibration: VoiceCalibration) -> Stage | None:
        """How detector and language model found the present pause, None if neither has answered."""
        policy = settings.policy
        if policy is None:
            return None
        return settings.fusion.stage(policy, self._calibrated(calibration), self.predicted)

    def end_action(
        self, settings: TurnTakingSettings, calibration: VoiceCalibration, silence_ms: float
    ) -> TurnAction | None:
        """What the silence so far makes of the turn: a commit, a drop, or nothing yet."""
        if self.is_short(settings):
            return TurnAction.DROP if silence_ms >= settings.end_ms else None
        if silence_ms < self.commit_after_ms(settings, calibration):
            return None
        is_brief = self.end_ms - self.start_ms < settings.interruption.turn_ms
        needs_no_reply = self.stage(settings, calibration) is Stage.UNFINISHED
        return TurnAction.DROP if is_brief and needs_no_reply else TurnAction.COMMIT

    def _calibrated(self, calibration: VoiceCalibration) -> float | None:
        return None if self.rated is None else calibration.apply(self.rated)
