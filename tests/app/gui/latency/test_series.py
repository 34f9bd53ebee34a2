"""Values by turn and levels over seconds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from app.gui.latency.series import LevelSeries, TurnSeries


def test_a_turn_is_one_point_at_its_id() -> None:
    series = TurnSeries()
    for turn_id, value in ((3, 30.0), (5, 50.0), (4, 40.0)):
        series.put(turn_id, value)
    points = series.points()
    assert points.turns.tolist() == [3, 4, 5]
    assert points.medians.tolist() == points.lowest.tolist() == points.highest.tolist() == [30, 40, 50]


def test_the_newest_value_of_a_turn_counts() -> None:
    series = TurnSeries()
    series.put(1, 900.0)
    series.put(1, 300.0)
    summary = series.summary()
    assert summary is not None
    assert (summary.count, summary.last, summary.maximum) == (1, 300.0, 300.0)


def test_calls_of_a_turn_are_their_median_and_span() -> None:
    series = TurnSeries(per_call=True)
    for value in (4.0, 9.0, 5.0):
        series.put(2, value)
    assert series.points().medians.tolist() == [5.0]
    series.put(2, 1.0)
    points = series.points()
    assert (points.medians.tolist(), points.lowest.tolist(), points.highest.tolist()) == ([4.5], [1.0], [9.0])
    summary = series.summary()
    assert summary is not None
    assert (summary.count, summary.last) == (4, 4.5)


def test_turns_that_left_do_not_count() -> None:
    series = TurnSeries()
    series.put(1, 5_000.0)
    series.put(2, 100.0)
    before = series.total
    series.drop_before(2)
    summary = series.summary()
    assert summary is not None
    assert summary.maximum == 100.0
    assert series.total > before
    series.drop_before(9)
    assert series.summary() is None
    assert series.points().turns.tolist() == []


def test_summary_has_the_percentiles_of_numpy() -> None:
    series = TurnSeries(per_call=True)
    values = [float(value) for value in range(1, 101)]
    for value in values:
        series.put(1, value)
    summary = series.summary()
    assert summary is not None
    assert summary.p50 == pytest.approx(np.percentile(values, 50))
    assert summary.p95 == pytest.approx(np.percentile(values, 95))
    assert TurnSeries().summary() is None


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 9, 4001])
def test_levels_equal_a_list_cut_to_its_capacity(count: int) -> None:
    series = LevelSeries(capacity=4)
    values = [math.sin(index) for index in range(count)]
    for index, value in enumerate(values):
        series.append(index / 20, value)
    np.testing.assert_array_equal(series.y, values[-4:])
    np.testing.assert_array_equal(series.x, [index / 20 for index in range(count)][-4:])
    assert len(series) == min(count, 4)


def test_levels_are_handed_out_as_copies() -> None:
    series = LevelSeries(capacity=2)
    series.append(0.0, 1.0)
    held = series.y
    series.append(1.0, 2.0)
    series.append(2.0, 3.0)
    assert held.tolist() == [1.0]
    assert LevelSeries().summary() is None
