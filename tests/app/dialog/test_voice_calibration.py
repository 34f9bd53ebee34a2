"""What is learned from the finished turns of a voice."""

from __future__ import annotations

from itertools import pairwise

import pytest

from app.dialog.end_of_turn import log_odds
from app.dialog.voice_calibration import VoiceCalibration


def calibrated(*confirmed: float) -> VoiceCalibration:
    """After finished turns with these probabilities."""
    calibration = VoiceCalibration()
    for probability in confirmed:
        calibration.commit(probability)
        calibration.confirm()
    return calibration


def test_an_unknown_voice_is_taken_at_its_word() -> None:
    calibration = VoiceCalibration()
    assert calibration.shift == 0.0
    for probability in (0.0, 0.3, 1.0):
        assert calibration.apply(probability) == probability


def test_a_voice_with_low_ends_is_raised_more_with_each_of_them() -> None:
    answers = [calibrated(*[0.3] * turns).apply(0.3) for turns in range(9)]
    assert all(less < more for less, more in pairwise(answers))
    assert 0.85 < answers[-1] < 0.95  # its ends now sound nearly like those of other voices


def test_a_voice_with_clear_ends_stays_as_it_is() -> None:
    calibration = calibrated(0.97, 0.99, 0.95)
    assert calibration.shift == 0.0
    assert calibration.apply(0.4) == 0.4


def test_the_order_of_pauses_remains() -> None:
    calibration = calibrated(0.2, 0.4)
    answers = [calibration.apply(probability) for probability in (0.0, 0.1, 0.5, 0.9, 0.999)]
    assert answers == sorted(answers)
    assert all(0.0 < answer < 1.0 for answer in answers)
    assert log_odds(answers[2]) == pytest.approx(calibration.shift)


def test_the_correction_has_a_limit() -> None:
    assert calibrated(*[0.0] * 8).shift == 3.0


def test_only_the_latest_turns_count() -> None:
    low, high = [0.3] * 20, [0.95] * 8
    assert calibrated(*low, *high).shift == calibrated(*high).shift


@pytest.mark.parametrize("probability", [None, 0.1])
def test_nothing_is_learned_from_turns_that_say_nothing(probability: float | None) -> None:
    calibration = VoiceCalibration()
    calibration.commit(probability)
    if probability is not None:
        calibration.withdraw()
    calibration.confirm()
    assert calibration.shift == 0.0


def test_a_turn_is_confirmed_once() -> None:
    calibration = calibrated(0.3)
    once = calibration.shift
    calibration.confirm()
    assert calibration.shift == once
