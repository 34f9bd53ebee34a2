"""The staged policy: pure, without any clock."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialog.end_of_turn import DEFAULT_EAGERNESS, POLICIES, EndOfTurnPolicy, Stage
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
