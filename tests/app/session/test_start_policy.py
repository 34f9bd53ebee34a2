"""When a reply starts, from how the last one came."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.session.start_policy import MARGIN_MS, SLOWER, Arrival, may_start, start_delay_ms


def test_a_reply_that_comes_fast_enough_starts_with_its_first_piece() -> None:
    # 240 ms first, then 400 ms every 100 ms
    assert start_delay_ms([Arrival(50, 240), Arrival(150, 400), Arrival(250, 400)]) == 0


def test_growing_packets_are_waited_for_as_long_as_they_take() -> None:
    # the third piece comes 900 ms after the first, when 640 ms are in hand
    delay = start_delay_ms([Arrival(0, 240), Arrival(100, 400), Arrival(900, 800)])
    assert delay == pytest.approx(SLOWER * 900 + MARGIN_MS - 640)


def test_one_piece_teaches_nothing() -> None:
    assert start_delay_ms([]) is None
    assert start_delay_ms([Arrival(5, 100)]) is None


@given(st.lists(st.tuples(st.floats(0, 500), st.floats(1, 1_000)), min_size=2, max_size=20))
def test_a_reply_that_comes_as_the_last_one_never_runs_dry(pieces: list[tuple[float, float]]) -> None:
    now, arrivals = 0.0, []
    for gap, audio in pieces:
        now += gap
        arrivals.append(Arrival(now, audio))
    delay = start_delay_ms(arrivals)
    assert delay is not None
    start, sounded = arrivals[0].at_ms + delay, 0.0
    for piece in arrivals:
        # what came before this piece is not used up when it comes
        assert piece is arrivals[0] or piece.at_ms <= start + sounded + 1e-6
        sounded += piece.audio_ms


def test_start_with_and_without_a_lesson() -> None:
    assert not may_start(0, 1_000, 0, 0, 0)  # nothing in hand
    assert [may_start(level, 0, None, 300, 1_100) for level in (299, 300)] == [False, True]
    assert [may_start(50, waited, 100, 300, 1_100) for waited in (99, 100)] == [False, True]
    assert may_start(1_100, 0, 5_000, 300, 1_100)  # enough in hand, whatever was learnt
