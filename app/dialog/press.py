"""A press of the push-to-talk button: what is speech meanwhile, and when the press is over.

In: the button, and one probability per VAD frame. Out: the speech of the turn, and how the press ended. Pure,
with times in milliseconds of captured audio; used by turn_taking.
"""

from __future__ import annotations

from app.dialog.turn_events import PressEnd
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.dialog.user_speech import UserSpeech


class Press:
    """The present press, if the button is down."""

    def __init__(self) -> None:
        self.is_down = False
        self._released_ms: float | None = None

    def begin(self) -> None:
        """The button went down."""
        self.is_down, self._released_ms = True, None

    def release(self, at_ms: float) -> None:
        """The button came up at `at_ms`: the frame that reaches this time ends the press."""
        self._released_ms = at_ms

    def end(self) -> None:
        """The press is over, or what it opened is."""
        self.is_down = False

    def hear(
        self,
        settings: TurnTakingSettings,
        speech: UserSpeech,
        probability: float,
        start_ms: float,
        end_ms: float,
    ) -> bool:
        """The next frame, which is added to `speech` if it is some; whether it is the first."""
        is_first = not speech.speech_ms
        if probability < (settings.start_threshold if is_first else settings.end_threshold):
            return False
        speech.add(start_ms, end_ms)
        if is_first:
            speech.start_ms = start_ms
        return is_first

    def ended(self, settings: TurnTakingSettings, speech: UserSpeech, end_ms: float) -> PressEnd | None:
        """How the frame that ends at `end_ms` ended the press, None if it did not."""
        if self._released_ms is not None and end_ms >= self._released_ms:
            return "released"
        return "length" if end_ms - speech.start_ms >= settings.max_turn_ms else None
