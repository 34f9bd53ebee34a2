"""When replies are made speculatively, by what the engine could do lately."""

from __future__ import annotations

from app.session.speculation_policy import TRY_AGAIN_TURNS, SpeculationPolicy


def test_an_engine_is_trusted_until_it_is_slow() -> None:
    policy = SpeculationPolicy()
    assert policy.off_reason is None
    policy.note_reply(1.2)
    assert policy.off_reason == "slow_engine"


def test_one_slow_reply_among_fast_ones_changes_nothing() -> None:
    policy = SpeculationPolicy()
    for rtf in (0.5, 0.5, 3.0, 0.5):
        policy.note_reply(rtf)
        assert policy.off_reason is None


def test_it_is_on_again_only_once_the_engine_is_clearly_faster_than_real_time() -> None:
    policy = SpeculationPolicy()
    reasons = []
    for rtf in (1.1, 1.1, 0.9, 0.9, 0.9, 0.7, 0.7):
        policy.note_reply(rtf)
        reasons.append(policy.off_reason)
    assert reasons == ["slow_engine"] * 6 + [None]


def test_slow_roll_backs_switch_it_off_for_some_turns() -> None:
    policy = SpeculationPolicy()
    policy.note_roll_back(300.0)
    policy.note_roll_back(20.0)
    assert policy.off_reason is None  # too few to judge
    policy.note_roll_back(150.0)
    assert policy.off_reason == "slow_roll_back"
    for _ in range(TRY_AGAIN_TURNS - 1):
        policy.note_turn()
        assert policy.off_reason == "slow_roll_back"
    policy.note_turn()
    assert policy.off_reason is None
