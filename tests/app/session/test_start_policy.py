"""Start of a reply, given the lateness of recent packets and the pace of this reply."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.session.start_policy import MARGIN_MS, MAX_DELAY_MS, PlayoutStart, StartPolicy

ROUND_MS = 5
REMEMBERED = 7
"""Replies whose worst lateness counts."""

Reply = list[tuple[float, float]]
"""Packets: the time since the one before (since the question for the first), and the audio in it, in ms."""


def play(
    policy: StartPolicy, reply: Reply, least_ms: float = 0.0, asked_ms: float = 50.0
) -> tuple[PlayoutStart, int]:
    """Play a reply as the dialog loop does, in rounds; its start and the number of under-runs."""
    policy.begin(asked_ms, least_ms)
    times = [asked_ms + at_ms for at_ms in itertools.accumulate(gap_ms for gap_ms, _ in reply)]
    coming = list(zip(times, (audio_ms for _, audio_ms in reply), strict=True))
    now_ms, level_ms, underruns, is_flowing = asked_ms, 0.0, 0, False
    while True:
        while coming and coming[0][0] <= now_ms:
            policy.add(*coming[0])
            level_ms += coming.pop(0)[1]
        is_flowing = is_flowing or policy.may_start(now_ms, level_ms, is_complete=not coming)
        if is_flowing and level_ms <= 0:
            if not coming:
                break
            underruns, is_flowing = underruns + 1, False
            policy.run_dry(now_ms)
        if is_flowing:
            level_ms = max(level_ms - ROUND_MS, 0.0)
        now_ms += ROUND_MS
    policy.learn()
    assert policy.start is not None
    return policy.start, underruns


def steady(gap_ms: float, packets: int = 10, took_ms: float | None = None) -> Reply:
    """A first packet of 200 ms, then 400 ms every `gap_ms`."""
    first_ms = gap_ms if took_ms is None else took_ms
    return [(first_ms, 200.0), *[(gap_ms, 400.0)] * (packets - 1)]


def burst(gap_ms: float) -> Reply:
    """All goes fast but the fourth packet."""
    return [*steady(100, 3), (gap_ms, 400.0), *[(100.0, 400.0)] * 6]


def test_on_a_quiet_machine_every_reply_but_the_first_starts_with_its_first_packet() -> None:
    policy = StartPolicy()
    assert play(policy, steady(120), least_ms=300) == (PlayoutStart(120, "first_reply", 0.0), 0)
    for _ in range(20):
        assert play(policy, steady(120), least_ms=300) == (PlayoutStart(0, "at_once", 0.0), 0)


def test_the_first_reply_waits_for_its_own_pace_on_a_busy_machine() -> None:
    start, underruns = play(StartPolicy(), steady(360))  # RTF 0.9
    assert start == PlayoutStart(540, "pace", 0.0)  # 600 ms buffered last for twice 360 ms after 180 more
    assert underruns == 0
    assert play(StartPolicy(), steady(200)) == (PlayoutStart(200, "pace", 0.0), 0)


def test_steadily_slow_replies_wait_as_long_as_their_packets_are_late() -> None:
    policy = StartPolicy()
    play(policy, steady(360))
    for _ in range(20):
        start, underruns = play(policy, steady(360, took_ms=180))
        assert (start.reason, start.target_ms, underruns) == ("lateness", 160 + MARGIN_MS, 0)
        assert start.delay_ms == pytest.approx(160 + MARGIN_MS, abs=ROUND_MS)


def test_a_load_that_begins_is_waited_for_at_once() -> None:
    policy = StartPolicy()
    for _ in range(10):
        play(policy, steady(100))
    start, underruns = play(policy, steady(360))
    assert (start.delay_ms, start.reason, underruns) == (540, "pace", 0)


def test_a_burst_is_remembered_for_some_replies_and_then_forgotten() -> None:
    policy = StartPolicy()
    for _ in range(20):
        play(policy, steady(100))
    assert play(policy, burst(1_300))[1] == 1
    target_ms = 100 + 100 + 1_300 - (200 + 400 + 400) + MARGIN_MS
    starts = [play(policy, steady(100))[0] for _ in range(REMEMBERED + 1)]
    assert [start.target_ms for start in starts] == [target_ms] * REMEMBERED + [0]
    assert starts[-1].reason == "at_once"


def test_a_load_that_ends_is_forgotten_more_slowly_than_a_burst() -> None:
    policy = StartPolicy()
    for _ in range(20):
        play(policy, steady(360))
    targets = [play(policy, steady(100))[0].target_ms for _ in range(20)]
    assert targets == [160 + MARGIN_MS] * 14 + [0] * 6


def test_an_under_run_makes_the_next_delay_longer_even_if_no_packet_was_late() -> None:
    policy = StartPolicy()
    targets = []
    for _ in range(3):
        policy.begin(0, 0)
        for packet in range(3):
            policy.add(100.0 * packet, 400)
        now_ms = 200.0
        while not policy.may_start(now_ms, 1_200, is_complete=False):
            now_ms += ROUND_MS
        policy.run_dry(now_ms + 500)
        policy.learn()
        policy.begin(0, 0)
        targets.append(policy.target_ms)
    first = targets[0]
    assert first is not None
    assert targets == [first, first + MARGIN_MS, first + 2 * MARGIN_MS]


def test_after_an_under_run_there_is_enough_for_the_next_packet() -> None:
    policy = StartPolicy()
    policy.begin(0, 0)
    policy.add(100, 200)
    assert policy.may_start(100, 200, is_complete=False)
    policy.run_dry(300)
    assert not policy.may_start(599, 0, is_complete=False)
    policy.add(600, 400)  # it took 500 ms, the next one may take 1,000
    assert not policy.may_start(1_255, 400, is_complete=False)
    assert policy.may_start(1_260, 400, is_complete=False)
    assert policy.start == PlayoutStart(0, "at_once", 0.0)


def test_a_complete_reply_starts_at_once() -> None:
    policy = StartPolicy()
    play(policy, burst(1_300))
    assert play(policy, [(20, 300), (100, 50)])[0].reason == "complete"
    policy.begin(0, 0)
    assert policy.may_start(0, 0, is_complete=True)  # nothing to play
    assert policy.start is None


def test_nothing_is_waited_for_without_end() -> None:
    policy = StartPolicy()
    slow = steady(10_000, 3)
    play(policy, slow)
    start, underruns = play(policy, slow)
    assert (start.delay_ms, start.target_ms) == (MAX_DELAY_MS, MAX_DELAY_MS)
    assert underruns == 2


def test_one_packet_teaches_nothing() -> None:
    policy = StartPolicy()
    play(policy, [(5_000, 100)])
    policy.begin(0, 0)
    assert policy.target_ms is None


packets = st.tuples(st.floats(0, 300), st.floats(1, 500))
replies = st.lists(packets, min_size=2, max_size=8)


@given(st.lists(replies, min_size=1, max_size=12), st.data())
def test_a_reply_that_comes_like_one_of_the_last_never_runs_dry(
    history: list[Reply], data: st.DataObject
) -> None:
    policy = StartPolicy()
    for reply in history:
        play(policy, reply)
    repeated = data.draw(st.sampled_from(history[-REMEMBERED:]))
    assert play(policy, repeated)[1] == 0


def held(policy: StartPolicy, *arrivals: tuple[float, float], confirmed_ms: float, was_waiting: bool) -> None:
    """A reply that was held, with these packets, until it was confirmed."""
    policy.begin(0.0, 300.0)
    for at_ms, audio_ms in arrivals:
        policy.add(at_ms, audio_ms)
    policy.release(confirmed_ms, was_waiting=was_waiting)


def test_a_held_reply_starts_when_it_is_confirmed() -> None:
    policy = StartPolicy()
    held(policy, (100, 200.0), (220, 400.0), confirmed_ms=480, was_waiting=False)
    assert policy.may_start(480, 600.0, is_complete=False)
    assert policy.start == PlayoutStart(0, "at_once", 0.0)


def test_a_round_that_began_before_the_release_has_held_nothing_back() -> None:
    policy = StartPolicy()
    held(policy, (100, 200.0), (220, 400.0), confirmed_ms=480, was_waiting=False)
    assert policy.may_start(476, 600.0, is_complete=False)
    assert policy.start == PlayoutStart(0, "at_once", 0.0)


def test_the_time_in_which_a_reply_was_held_counts_as_waited() -> None:
    policy = StartPolicy()
    play(policy, burst(1_200))
    policy.begin(0.0, 300.0)
    target_ms = policy.target_ms or 0.0
    assert target_ms > 300
    held(policy, (100, 200.0), (220, 400.0), confirmed_ms=300, was_waiting=False)
    assert not policy.may_start(300, 600.0, is_complete=False)
    assert policy.may_start(100 + target_ms, 600.0, is_complete=False)
    assert policy.start is not None
    assert policy.start.delay_ms == pytest.approx(target_ms - 200)
    assert policy.start == PlayoutStart(policy.start.delay_ms, "lateness", target_ms)


@pytest.mark.parametrize("was_waiting", [True, False])
def test_packets_that_the_engine_made_after_it_had_waited_are_not_late(was_waiting: bool) -> None:
    policy = StartPolicy()
    held(policy, (100, 600.0), (200, 400.0), confirmed_ms=2_000, was_waiting=was_waiting)
    assert policy.may_start(2_000, 1_000.0, is_complete=False)
    policy.add(2_100, 400.0)
    policy.learn()
    policy.begin(0.0, 300.0)
    assert policy.target_ms == (0.0 if was_waiting else 1_000 + MARGIN_MS)


def test_a_first_packet_that_took_no_longer_than_the_last_ones_starts_at_once() -> None:
    policy = StartPolicy()
    usual, loaded = steady(120, took_ms=230), steady(120, took_ms=400)
    assert play(policy, usual) == (PlayoutStart(120, "pace", 0.0), 0)
    assert play(policy, usual) == (PlayoutStart(0, "at_once", 0.0), 0)
    assert play(policy, loaded)[0].reason == "pace"
