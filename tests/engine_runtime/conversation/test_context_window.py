"""Which turns are dropped when the context is full."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_runtime.conversation.context_window import num_dropped, reply_reserve
from engine_runtime.errors import ContextLengthError


def test_nothing_is_dropped_while_everything_fits() -> None:
    assert num_dropped(20, [100, 100], 50, reserve=30, limit=300) == 0


def test_a_full_context_is_emptied_to_a_half_so_that_the_prefix_stays_for_many_turns() -> None:
    assert num_dropped(20, [100, 100, 100, 100], 50, reserve=30, limit=400) == 3
    assert num_dropped(20, [100], 50, reserve=30, limit=400) == 0


def test_a_turn_that_does_not_fit_alone_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ContextLengthError, match="Send a shorter message"):
        num_dropped(20, [100], 500, reserve=30, limit=400)


def test_how_much_is_kept_can_be_chosen() -> None:
    exchanges = [100, 100, 100, 100]
    assert num_dropped(20, exchanges, 50, reserve=30, limit=400, retention=1.0) == 1
    assert num_dropped(20, exchanges, 50, reserve=30, limit=400, retention=0.0) == 4
    assert num_dropped(20, exchanges, 50, reserve=30, limit=500, retention=None) == 0
    with pytest.raises(ContextLengthError, match="allow its oldest part to be left out"):
        num_dropped(20, exchanges, 50, reserve=30, limit=400, retention=None)


def test_the_reply_keeps_at_most_a_quarter() -> None:
    assert reply_reserve(512, 4096) == 512
    assert reply_reserve(5000, 4096) == 1024


@given(
    exchanges=st.lists(st.integers(1, 200), max_size=20),
    current=st.integers(1, 200),
    limit=st.integers(300, 2000),
)
def test_what_is_kept_always_fits(exchanges: list[int], current: int, limit: int) -> None:
    dropped = num_dropped(30, exchanges, current, reserve=50, limit=limit)
    assert 30 + sum(exchanges[dropped:]) + current + 50 <= limit
    assert 0 <= dropped <= len(exchanges)
