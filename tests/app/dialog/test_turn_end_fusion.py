"""Language model and detector together: who decides, and how long that takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialog.end_of_turn import POLICIES, EndOfTurnPolicy, Stage
from app.dialog.turn_end_fusion import TurnEndFusion

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
