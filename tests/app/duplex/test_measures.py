"""The definitions, on segments made by hand."""

from __future__ import annotations

import pytest

from app.duplex.measures import DEFINITIONS, Outcomes, Share, Spread, judge, summarize_outcomes
from app.duplex.segments import Segment, SegmentKind, UserSegment


def turn(start_s: float, end_s: float, *pauses: tuple[float, float]) -> UserSegment:
    return UserSegment("turn", start_s, end_s, pauses)


def test_an_answered_turn() -> None:
    (outcome,) = judge([turn(1, 3)], [Segment(3.4, 5)]).turns
    assert (outcome.is_answered, outcome.is_interrupted, outcome.takes_turn) == (True, False, True)
    assert outcome.latency_s == outcome.fdb_latency_s == pytest.approx(0.4)


@pytest.mark.parametrize("model", [[], [Segment(0, 0.9)], [Segment(13.1, 15)]])
def test_a_turn_without_an_answer(model: list[Segment]) -> None:
    (outcome,) = judge([turn(1, 3)], model).turns
    assert not outcome.is_answered
    assert outcome.latency_s is outcome.fdb_latency_s is None


def test_what_comes_after_the_next_turn_began_does_not_answer_the_first() -> None:
    first, second = judge([turn(1, 2), turn(4, 5)], [Segment(5.5, 7)]).turns
    assert not first.is_answered
    assert second.latency_s == pytest.approx(0.5)


def test_a_backchannel_does_not_end_the_wait_for_an_answer() -> None:
    user = [turn(1, 2), UserSegment("tic", 2.5, 2.6)]
    assert judge(user, [Segment(4, 7)]).turns[0].is_answered


def test_a_short_reply_answers_but_takes_no_turn() -> None:
    (outcome,) = judge([turn(1, 2)], [Segment(2.5, 3.4)]).turns
    assert outcome.is_answered
    assert not outcome.takes_turn


def test_a_reply_within_the_turn_interrupts_it() -> None:
    (outcome,) = judge([turn(1, 4, (2, 3))], [Segment(2.5, 3.1), Segment(4.5, 6)]).turns
    assert outcome.is_interrupted
    assert outcome.is_answered
    assert outcome.latency_s == pytest.approx(0.5)
    ((seconds, is_heard, takes_turn),) = outcome.pauses
    assert (seconds, is_heard, takes_turn) == (1, True, False)  # 0.6 s: too short to take the turn


def test_a_reply_that_runs_into_the_end_of_the_turn_counts_as_its_answer() -> None:
    (outcome,) = judge([turn(1, 4, (2, 3))], [Segment(2.5, 6)]).turns
    assert (outcome.is_interrupted, outcome.is_answered) == (True, True)
    assert outcome.latency_s is None
    assert outcome.fdb_latency_s == 0
    assert outcome.pauses[0][2]


def test_a_turn_that_is_cut_off_at_a_long_pause_only_is_not_counted_as_cut_off() -> None:
    short, long = turn(0, 3, (1, 1.8)), turn(10, 15, (11, 13))
    panel = summarize_outcomes(judge([short, long], [Segment(12, 12.5)]))
    assert panel.shares["cut off"] == Share(0, 1)
    assert panel.shares["I_A"] == Share(1, 2)


def test_an_interruption_that_is_yielded_to() -> None:
    user = [turn(0, 1), UserSegment("interruption", 3, 4)]
    model = [Segment(1.5, 2.2), Segment(2.4, 3.3), Segment(4.5, 6)]
    outcomes = judge(user, model)
    (outcome,) = outcomes.interruptions
    assert outcome.is_yielded
    assert outcome.yield_s == pytest.approx(0.3)
    assert outcome.stop_s == pytest.approx(0.3)
    assert outcome.response_s == pytest.approx(0.5)
    assert outcome.takes_turn
    assert len(outcomes.turns) == 1


def test_an_interruption_that_is_ignored() -> None:
    user = [UserSegment("interruption", 3, 4)]
    (outcome,) = judge(user, [Segment(1, 5.1)]).interruptions
    assert not outcome.is_yielded
    assert outcome.yield_s is None
    assert outcome.stop_s == pytest.approx(1.0)
    assert outcome.response_s is None


def test_a_reply_that_stops_within_two_seconds_yields_and_later_does_not() -> None:
    user = [UserSegment("interruption", 3, 8)]
    assert judge(user, [Segment(1, 5.0)]).interruptions[0].is_yielded
    assert not judge(user, [Segment(1, 5.01)]).interruptions[0].is_yielded


def test_an_answer_that_begins_right_after_the_cut_is_another_reply() -> None:
    user = [UserSegment("interruption", 3, 3.4, text="stop")]
    model = [Segment(1, 3.6), Segment(3.9, 7)]
    assert not judge(user, model).interruptions[0].is_yielded
    (outcome,) = judge(user, model, cut_s=[3.58]).interruptions
    assert (outcome.is_yielded, outcome.takes_turn) == (True, True)
    assert (outcome.stop_word_s, outcome.response_s) == pytest.approx((0.2, 0.5))


def test_an_interruption_of_nothing_is_a_turn() -> None:
    outcomes = judge([UserSegment("interruption", 3, 4)], [Segment(1, 2), Segment(4.5, 6)])
    assert not outcomes.interruptions
    assert outcomes.turns[0].is_answered


@pytest.mark.parametrize("kind", ["backchannel", "tic", "not_directed"])
@pytest.mark.parametrize(
    ("model", "is_ignored"),
    [
        ([Segment(1, 6)], True),  # talks on
        ([Segment(1, 3.2), Segment(3.7, 6)], True),  # a gap of half a second is none
        ([Segment(1, 3.2), Segment(3.9, 6)], False),  # stops, and speaks again
        ([Segment(1, 3.2)], False),  # stops
        ([Segment(1, 4.1)], True),  # ends more than a second later
        ([Segment(1, 4.1), Segment(5.0, 6)], False),  # and answers
        ([Segment(1, 4.1), Segment(5.5, 6)], True),  # later than two seconds after the end
        ([], True),
        ([Segment(4.0, 5)], False),  # answers out of silence
    ],
)
def test_what_is_to_be_ignored(kind: SegmentKind, model: list[Segment], is_ignored: bool) -> None:
    (outcome,) = judge([UserSegment(kind, 3, 3.4)], model).ignored
    assert outcome.is_ignored is is_ignored
    assert outcome.kind == kind


@pytest.mark.parametrize(
    ("yielded_s", "is_ignored"), [(None, False), ([], True), ([2.5, 4.5], True), ([3.1], False)]
)
def test_a_reply_that_ends_by_itself_has_not_yielded(yielded_s: list[float] | None, is_ignored: bool) -> None:
    tic = UserSegment("tic", 3, 3.4)
    (outcome,) = judge([tic], [Segment(1, 3.2)], yielded_s).ignored
    assert outcome.is_ignored is is_ignored


@pytest.mark.parametrize(("low_s", "is_ignored"), [(0.69, True), (0.71, False)])
def test_a_reply_that_is_soft_for_too_long_has_yielded(low_s: float, is_ignored: bool) -> None:
    said = UserSegment("backchannel", 3, 3.4)
    (outcome,) = judge([said], [Segment(1, 8)], lowered=[Segment(3.2, 3.2 + low_s)]).ignored
    assert outcome.is_ignored is is_ignored


def test_to_an_interruption_softness_is_no_silence() -> None:
    said = UserSegment("interruption", 3, 6)
    (outcome,) = judge([said], [Segment(1, 8)], lowered=[Segment(3.2, 7.0)]).interruptions
    assert not outcome.is_yielded


def test_stop_is_timed_from_its_end_and_any_other_interruption_from_its_start() -> None:
    outcomes = judge(
        [
            UserSegment("interruption", 3, 3.4, text="stop"),
            UserSegment("interruption", 9, 11, text="what is it"),
        ],
        [Segment(1, 3.6), Segment(7, 9.5)],
    )
    spreads = summarize_outcomes(outcomes).spreads
    stop, others = spreads["silent after stop"], spreads["silent after others"]
    assert (stop.count, stop.p95) == (1, pytest.approx(0.2))
    assert (others.count, others.p50) == (1, pytest.approx(0.5))


def test_the_panel_sums_conversations_and_defines_what_it_shows() -> None:
    total = Outcomes()
    for _ in range(6):
        total += judge([turn(1, 2), UserSegment("tic", 4, 4.2)], [Segment(2.5, 6)])
    panel = summarize_outcomes(total)
    assert panel.shares["R_R"] == Share(6, 6)
    assert panel.shares["S_VT"] == Share(6, 6)
    assert panel.shares["S_BC"] == Share(0, 0)
    assert panel.spreads["L_R"].p50 == pytest.approx(0.5)
    assert panel.spreads["L_Y"].count == 0
    assert set(panel.shares) | set(panel.spreads) == set(DEFINITIONS)


def test_a_share_of_few_events_has_no_rate() -> None:
    assert Share.of([True] * 9).rate is None
    assert Share.of([True] * 9 + [False]) == Share(9, 10)
    assert Share(9, 10).rate == pytest.approx(0.9)
    assert Share.of([]).rate is None


def test_percentiles() -> None:
    assert Spread.of([]) == Spread(0, None, None)
    spread = Spread.of(range(101))
    assert (spread.count, spread.p50, spread.p95) == (101, 50.0, 95.0)
