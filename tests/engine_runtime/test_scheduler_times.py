"""Times of calls by stage and batch size, and what is expected of the next one."""

from __future__ import annotations

import pytest

from engine_runtime.scheduler import StageTimes


def test_a_call_is_expected_to_take_as_long_as_those_of_the_nearest_smaller_batch() -> None:
    times = StageTimes()
    assert times.expected_ns("step", 4) is None
    times.note("step", 2, 100)
    times.note("step", 8, 400)
    times.note("flow", 1, 7)
    assert times.expected_ns("step", 1) is None
    assert times.expected_ns("step", 2) == times.expected_ns("step", 7) == 100
    assert times.expected_ns("step", 64) == 400


def test_totals_and_a_moving_average() -> None:
    times = StageTimes()
    for duration_ns in (100, 200, 100):
        times.note("step", 1, duration_ns)
    known = times.summary()["step", 1]
    assert (known.calls, known.total_ns) == (3, 400)
    assert known.recent_ns == pytest.approx(116.0)
    times.clear()
    assert not times.summary()
