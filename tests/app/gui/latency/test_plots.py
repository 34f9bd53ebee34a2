"""Ranges of live axes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.gui.latency.plots import AxisRange, robust_maximum, round_up


@pytest.mark.parametrize(
    ("value", "bound"),
    [(0, 1e-9), (0.9, 1), (1, 1), (1.1, 1.5), (6.1, 8), (9, 10), (101, 150), (0.034, 0.04)],
)
def test_round_up_yields_round_bounds(value: float, bound: float) -> None:
    assert round_up(value) == pytest.approx(bound)


@given(st.floats(1e-6, 1e9))
def test_round_up_is_above_and_not_far(value: float) -> None:
    assert value * (1 - 1e-6) <= round_up(value) <= 2 * value


def test_range_grows_at_once() -> None:
    axis = AxisRange(10.0)
    assert axis.fit_upper(95.0)
    assert axis.upper >= 95.0


def test_range_shrinks_only_after_a_calm_while() -> None:
    axis = AxisRange(10.0, patience=5)
    axis.fit_upper(900.0)
    wide = axis.upper
    assert [axis.fit_upper(50.0) for _ in range(5)] == [False, False, False, False, True]
    assert 50.0 <= axis.upper < wide


def test_one_high_value_keeps_the_range() -> None:
    axis = AxisRange(10.0, patience=3)
    axis.fit_upper(100.0)
    wide = axis.upper
    for _ in range(4):
        axis.fit_upper(20.0)
        axis.fit_upper(20.0)
        axis.fit_upper(99.0)
    assert axis.upper == wide


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
def test_nothing_is_ever_cut_off(values: list[float]) -> None:
    axis = AxisRange(1.0, patience=2)
    for value in values:
        axis.fit_upper(value)
        assert axis.upper >= value


@pytest.mark.parametrize(
    ("values", "highest"),
    [
        ([], 0),
        ([30_000], 30_000),
        ([800, 30_000], 30_000),  # too few to tell which one is unusual
        ([800, 900, 30_000], 900),
        ([800, 900, 2_000], 2_000),  # within three times the median
        ([100] * 17 + [20_000, 30_000, 40_000], 20_000),  # one in ten at most
        ([100] * 18 + [20_000, 30_000], 100),
        ([0, 0, 0, 5], 0),
    ],
)
def test_outliers_do_not_count(values: list[float], highest: float) -> None:
    assert robust_maximum(np.array(values, dtype=np.float64)) == highest


@given(st.lists(st.floats(0, 1e6), min_size=3, max_size=60))
def test_nine_values_in_ten_are_in_the_range(values: list[float]) -> None:
    top = robust_maximum(np.array(values))
    assert sum(value > top for value in values) <= max(1, len(values) // 10)


def test_a_range_starts_over() -> None:
    axis = AxisRange(10.0)
    axis.fit_upper(900.0)
    axis.reset()
    assert axis.upper == 10.0
