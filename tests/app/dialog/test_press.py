"""What is speech while the button is down, and when the press is over."""

from __future__ import annotations

from app.dialog.press import Press
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.dialog.user_speech import UserSpeech

SETTINGS = TurnTakingSettings(start_threshold=0.5, end_threshold=0.3, max_turn_ms=5_000)


def pressed() -> tuple[Press, UserSpeech]:
    press, speech = Press(), UserSpeech()
    press.begin()
    speech.begin(1_000.0, 1_000.0, 0.0)
    return press, speech


def test_the_first_speech_has_to_be_clear() -> None:
    press, speech = pressed()
    assert not press.hear(SETTINGS, speech, 0.4, 1_000.0, 1_032.0)
    assert speech.speech_ms == 0.0
    assert press.hear(SETTINGS, speech, 0.6, 1_032.0, 1_064.0)
    assert not press.hear(SETTINGS, speech, 0.4, 1_064.0, 1_096.0)
    assert (speech.start_ms, speech.end_ms, speech.speech_ms) == (1_032.0, 1_096.0, 64.0)


def test_it_ends_with_the_frame_that_reaches_the_release() -> None:
    press, speech = pressed()
    press.release(2_000.0)
    assert press.ended(SETTINGS, speech, 1_990.0) is None
    assert press.ended(SETTINGS, speech, 2_010.0) == "released"
    press.begin()
    assert press.ended(SETTINGS, speech, 2_010.0) is None


def test_it_ends_at_the_longest_turn() -> None:
    press, speech = pressed()
    assert press.ended(SETTINGS, speech, 5_999.0) is None
    assert press.ended(SETTINGS, speech, 6_000.0) == "length"
