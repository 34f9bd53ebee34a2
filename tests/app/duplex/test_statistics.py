"""Shares and spreads."""

from __future__ import annotations

import pytest

from app.duplex.statistics import Share, Spread


def test_a_share_of_few_events_has_no_rate() -> None:
    assert Share.of([True] * 9).rate is None
    assert Share.of([True] * 9 + [False]) == Share(9, 10)
    assert Share(9, 10).rate == pytest.approx(0.9)
    assert Share.of([]).rate is None


def test_percentiles() -> None:
    assert Spread.of([]) == Spread(0, None, None)
    spread = Spread.of(range(101))
    assert (spread.count, spread.p50, spread.p95) == (101, 50.0, 95.0)
