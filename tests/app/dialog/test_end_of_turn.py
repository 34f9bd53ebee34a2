"""The staged policy: pure, without any clock."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialog.end_of_turn import (
    DEFAULT_EAGERNESS,
    POLICIES,
    EndOfTurnPolicy,
    Stage,
    TurnEndFusion,
    VoiceCalibration,
    log_odds,
)
from app.settings import Eagerness

POLICY = EndOfTurnPolicy(likely=0.9, likely_ms=250, unlikely=0.1, unlikely_ms=2_000)
LEVELS = [policy for policy in POLICIES.values() if policy is not None]


@pytest.mark.parametrize(
    ("probability", "stage", "silence_ms"),
    [
        (1.0, Stage.LIKELY, 250),
        (0.9, Stage.LIKELY, 250),
        (0.899, Stage.POSSIBLE, 254),
        (0.5, Stage.POSSIBLE, 1_125),  # half-way in log-odds
        (0.101, Stage.POSSIBLE, 1_996),
        (0.1, Stage.UNLIKELY, 2_000),
        (0.0, Stage.UNLIKELY, 2_000),
    ],
)
def test_stages(probability: float, stage: Stage, silence_ms: int) -> None:
    assert POLICY.stage(probability) is stage
    assert POLICY.silence_ms(probability, 640) == pytest.approx(silence_ms, abs=1)


def test_without_an_answer_it_is_the_silence_of_the_settings() -> None:
    assert POLICY.silence_ms(None, 640) == 640


def test_the_silence_of_the_settings_is_a_bound_on_either_side() -> None:
    assert POLICY.silence_ms(1.0, 200) == 200
    assert POLICY.silence_ms(0.0, 3_000) == 3_000


def test_every_eagerness_has_its_policy() -> None:
    assert set(POLICIES) == set(get_args(Eagerness))
    assert POLICIES["off"] is None
    assert POLICIES[DEFAULT_EAGERNESS] is not None


@given(st.floats(0, 1), st.integers(200, 1_400))  # the program takes 640; patient and balanced meet at 1,437
def test_who_is_more_eager_never_waits_longer(probability: float, end_ms: int) -> None:
    waits = [policy.silence_ms(probability, end_ms) for policy in LEVELS]
    assert all(later >= sooner for later, sooner in pairwise(waits))


@given(st.floats(0, 1), st.floats(0, 1))
def test_what_sounds_more_finished_never_waits_longer(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert all(policy.silence_ms(low, 640) >= policy.silence_ms(high, 640) for policy in LEVELS)


END_MS = 640
FUSION = TurnEndFusion()
policies = st.sampled_from([policy for policy in POLICIES.values() if policy is not None])
probabilities = st.floats(0.0, 1.0)


def balanced() -> EndOfTurnPolicy:
    policy = POLICIES["balanced"]
    assert policy is not None
    return policy


@pytest.mark.parametrize(
    ("rated", "predicted", "stage", "silence_ms"),
    [
        (None, None, None, 640),
        (0.99, None, Stage.LIKELY, 350),
        (0.30, None, Stage.UNLIKELY, 1_100),
        (None, 0.90, Stage.FINISHED, 350),
        (None, 0.95, Stage.FINISHED, 224),
        (0.49, 0.95, Stage.FINISHED, 350),
        (0.50, 0.90, Stage.FINISHED, 224),
        (0.49, 0.90, Stage.FINISHED, 350),
        (0.99, 0.90, Stage.LIKELY, 224),
        (0.01, 0.90, Stage.UNLIKELY, 1_100),
        (0.99, 0.50, Stage.LIKELY, 350),
        (0.30, 0.50, Stage.UNLIKELY, 1_100),
        (None, 0.50, None, 640),
        (None, 0.10, Stage.UNFINISHED, 2_200),
        (0.30, 0.10, Stage.UNFINISHED, 2_200),
        (0.99, 0.10, Stage.UNFINISHED, 2_200),
    ],
)
def test_who_decides(
    rated: float | None, predicted: float | None, stage: Stage | None, silence_ms: float
) -> None:
    assert FUSION.stage(balanced(), rated, predicted) is stage
    assert FUSION.silence_ms(balanced(), rated, predicted, END_MS) == pytest.approx(silence_ms)


@given(policies, st.none() | probabilities, probabilities)
def test_an_unfinished_question_waits_longest_and_a_finished_one_not_longer_than_without(
    policy: EndOfTurnPolicy, rated: float | None, predicted: float
) -> None:
    alone = FUSION.silence_ms(policy, rated, None, END_MS)
    together = FUSION.silence_ms(policy, rated, predicted, END_MS)
    if predicted >= FUSION.finished:
        agrees = predicted >= FUSION.sure if rated is None else rated >= FUSION.agrees
        assert (policy.agreed_ms if agrees else policy.likely_ms) <= together <= alone
    elif predicted > FUSION.unfinished:
        assert together == alone
    else:
        assert together >= max(alone, FUSION.unfinished_ms)


@pytest.mark.parametrize(
    "changes", [{"finished": 0.05}, {"veto": 0.6}, {"agrees": 1.5}, {"sure": 0.6}, {"unfinished_ms": 0}]
)
def test_thresholds_that_make_no_sense_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="got"):
        TurnEndFusion(**changes)  # type: ignore[arg-type]


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
