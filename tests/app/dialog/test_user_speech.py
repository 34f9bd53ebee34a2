"""The speech of the open turn: its extent, its pause, and the silence that ends it."""

from __future__ import annotations

import pytest

from app.dialog.end_of_turn import Stage, VoiceCalibration
from app.dialog.turn_events import TurnAction
from app.dialog.turn_taking import UserSpeech
from app.dialog.turn_taking_settings import TurnTakingSettings

SETTINGS = TurnTakingSettings(eagerness="balanced")


def paused_speech() -> UserSpeech:
    speech = UserSpeech()
    speech.begin(100.0, 200.0, 80.0)
    assert list(speech.fall_silent(SETTINGS, SETTINGS.pause_ms)) == [TurnAction.SILENCE, TurnAction.PAUSE]
    return speech


def test_a_silence_is_first_one_for_a_speculative_reply_and_then_a_pause() -> None:
    speech = UserSpeech()
    speech.begin(100.0, 200.0, 80.0)
    assert not list(speech.fall_silent(SETTINGS, SETTINGS.speculate_ms - 1))
    assert not speech.predict(200.0, 0.1)
    assert list(speech.fall_silent(SETTINGS, SETTINGS.speculate_ms)) == [TurnAction.SILENCE]
    assert speech.predict(200.0, 0.1)
    assert not list(speech.fall_silent(SETTINGS, SETTINGS.pause_ms - 1))
    assert list(speech.fall_silent(SETTINGS, SETTINGS.pause_ms)) == [TurnAction.PAUSE]
    assert not list(speech.fall_silent(SETTINGS, SETTINGS.end_ms))
    assert speech.add(400.0, 500.0)
    assert list(speech.fall_silent(SETTINGS, SETTINGS.speculate_ms)) == [TurnAction.SILENCE]
    assert not speech.add(600.0, 700.0), "a silence shorter than a pause ends none"


def test_its_length_is_without_gaps() -> None:
    speech = paused_speech()
    assert speech.is_short(SETTINGS)
    assert speech.add(400.0, 500.0)
    assert not speech.add(500.0, 600.0)
    assert (speech.start_ms, speech.end_ms, speech.speech_ms) == (100.0, 600.0, 280.0)
    assert not speech.is_short(SETTINGS)


def test_the_detector_rates_the_present_pause_alone() -> None:
    speech, calibration = paused_speech(), VoiceCalibration()
    assert speech.stage(SETTINGS, calibration) is None
    assert not speech.rate(150.0, 0.99)
    assert speech.rate(200.0, 0.99)
    assert speech.stage(SETTINGS, calibration) is Stage.LIKELY
    assert speech.commit_after_ms(SETTINGS, calibration) < SETTINGS.end_ms
    speech.add(400.0, 500.0)
    assert speech.stage(SETTINGS, calibration) is None
    assert speech.commit_after_ms(SETTINGS, calibration) == SETTINGS.end_ms
    assert not speech.rate(500.0, 0.99)


def test_without_a_detector_only_silence_ends_it() -> None:
    speech, settings = paused_speech(), TurnTakingSettings(eagerness="off")
    speech.rate(200.0, 0.99)
    assert speech.stage(settings, VoiceCalibration()) is None
    assert speech.commit_after_ms(settings, VoiceCalibration()) == settings.end_ms


def test_the_language_model_predicts_the_present_pause_alone() -> None:
    speech, calibration = paused_speech(), VoiceCalibration()
    assert not speech.predict(150.0, 0.1)
    assert speech.predict(200.0, 0.1)
    assert speech.stage(SETTINGS, calibration) is Stage.UNFINISHED
    assert speech.commit_after_ms(SETTINGS, calibration) == SETTINGS.fusion.unfinished_ms
    speech.add(400.0, 500.0)
    assert speech.stage(SETTINGS, calibration) is None
    assert not speech.predict(500.0, 0.9)


@pytest.mark.parametrize(
    ("length_ms", "predicted", "at_ms", "action"),
    [
        (400, None, 640, TurnAction.COMMIT),
        (400, 0.1, 2_199, None),
        (400, 0.1, 2_200, TurnAction.DROP),
        (700, 0.1, 2_200, TurnAction.COMMIT),
        (400, 0.9, 350, TurnAction.COMMIT),
        (100, 0.9, 350, None),
        (100, 0.9, 640, TurnAction.DROP),
    ],
)
def test_what_a_silence_makes_of_it(
    length_ms: float, predicted: float | None, at_ms: float, action: TurnAction | None
) -> None:
    speech = UserSpeech()
    speech.begin(0.0, length_ms, length_ms)
    assert len(list(speech.fall_silent(SETTINGS, at_ms))) == 2
    if predicted is not None:
        speech.predict(length_ms, predicted)
    assert speech.end_action(SETTINGS, VoiceCalibration(), at_ms) is action
