"""What the user has said in the open turn: its extent, the present pause, and how finished that sounds.

In: speech and silence, frame by frame, and the end-of-turn detector's answers. Out: the silence that ends the
turn. Pure, with times in milliseconds of captured audio; used by turn_taking.
"""

from __future__ import annotations

from app.dialog.end_of_turn import Stage
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
        self.is_paused = False
        self.rated: float | None = None
        """The detector's answer about the present pause, before calibration."""

    def begin(self, start_ms: float, end_ms: float, speech_ms: float) -> None:
        """The speech of another turn."""
        self.start_ms, self.end_ms, self.speech_ms = start_ms, end_ms, speech_ms
        self.end_pause()

    def add(self, start_ms: float, end_ms: float) -> bool:
        """A frame of speech; whether it ends a pause."""
        self.end_ms = end_ms
        self.speech_ms += end_ms - start_ms
        was_paused = self.is_paused
        self.end_pause()
        return was_paused

    def end_pause(self) -> None:
        """What was known of the pause is over."""
        self.is_paused = False
        self.rated = None

    def rate(self, speech_end_ms: float, probability: float) -> bool:
        """The detector's answer about the pause after `speech_end_ms`; False if that is over."""
        if not self.is_paused or speech_end_ms != self.end_ms:
            return False
        self.rated = probability
        return True

    def is_short(self, settings: TurnTakingSettings) -> bool:
        """Whether this is too little for a turn."""
        return self.speech_ms < settings.min_speech_ms

    def commit_after_ms(self, settings: TurnTakingSettings, calibration: VoiceCalibration) -> float:
        """Silence that commits the turn, as far as one knows by now."""
        policy = settings.policy
        if policy is None:
            return settings.end_ms
        rated = None if self.rated is None else calibration.apply(self.rated)
        return policy.silence_ms(rated, settings.end_ms)

    def stage(self, settings: TurnTakingSettings, calibration: VoiceCalibration) -> Stage | None:
        """How the detector found the present pause, None if it has not answered."""
        policy = settings.policy
        if policy is None or self.rated is None:
            return None
        return policy.stage(calibration.apply(self.rated))
