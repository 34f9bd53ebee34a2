"""The Qt-free model behind the latency view."""

from __future__ import annotations

import math

import numpy as np
import pytest

from app.gui.common.turn_times import LatencyStage
from app.gui.latency.metrics import SHOWN_TURNS, LatencyMetrics, LevelSeries, Metric, TurnSeries
from tests.doubles.timed_turns import event, spoken_turn, typed_turn


def test_a_turn_is_one_point_at_its_id() -> None:
    series = TurnSeries()
    for turn_id, value in ((3, 30.0), (5, 50.0), (4, 40.0)):
        series.put_value(turn_id, value)
    points = series.points()
    assert points.turns.tolist() == [3, 4, 5]
    assert points.medians.tolist() == points.lowest.tolist() == points.highest.tolist() == [30, 40, 50]


def test_the_newest_value_of_a_turn_counts() -> None:
    series = TurnSeries()
    series.put_value(1, 900.0)
    series.put_value(1, 300.0)
    summary = series.summary()
    assert summary is not None
    assert (summary.count, summary.last, summary.maximum) == (1, 300.0, 300.0)


def test_calls_of_a_turn_are_their_median_and_span() -> None:
    series = TurnSeries(per_call=True)
    for value in (4.0, 9.0, 5.0):
        series.put_value(2, value)
    assert series.points().medians.tolist() == [5.0]
    series.put_value(2, 1.0)
    points = series.points()
    assert (points.medians.tolist(), points.lowest.tolist(), points.highest.tolist()) == ([4.5], [1.0], [9.0])
    summary = series.summary()
    assert summary is not None
    assert (summary.count, summary.last) == (4, 4.5)


def test_turns_that_left_do_not_count() -> None:
    series = TurnSeries()
    series.put_value(1, 5_000.0)
    series.put_value(2, 100.0)
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
        series.put_value(1, value)
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


def test_events_become_series() -> None:
    metrics = LatencyMetrics()
    metrics.add_events(spoken_turn())
    held = {metric: series.points().medians.tolist() for metric, series in metrics.series.items()}
    assert held[Metric.PREFILL_SPEAKING] == [12.0]
    assert held[Metric.PREFILL_AT_COMMIT] == [20.0]
    assert held[Metric.TOKENS_AT_COMMIT] == [6.0]
    assert held[Metric.STEP] == [10.0]
    steps = metrics.series[Metric.STEP].summary()
    assert steps is not None
    assert steps.count == 3
    assert held[Metric.TTFA] == [200.0]
    assert held[Metric.VOICE_TO_VOICE] == [840.0]
    assert held[Metric.RTF_STEADY] == [0.25]
    assert held[Metric.CHUNK_AUDIO] == [400.0]
    assert held[Metric.MEMORY] == [13.2]
    turn = metrics.turn(1)
    assert turn is not None
    assert turn.ttfa_ms == 200.0
    assert turn.rtf_total == 0.3


def test_the_prefill_at_the_commit_is_the_one_of_the_waterfall() -> None:
    metrics = LatencyMetrics()
    metrics.add_events([event("commit", 900, 0), event("prefill", 905, 50, tokens=9, tokens_at_commit=9)])
    turn = spoken_turn()  # the reply before was discarded: committed again
    turn.insert(4, event("prefill", 1627, 2, tokens=1, tokens_at_commit=1))
    metrics.add_events(turn)
    waterfall = metrics.waterfall()
    assert waterfall is not None
    shown = metrics.summary(Metric.PREFILL_AT_COMMIT)
    assert shown is not None
    assert shown.last == waterfall.total_ms(LatencyStage.PREFILL) == 22.0


def test_every_point_stands_at_its_turn() -> None:
    metrics = LatencyMetrics()
    spoken, everyone = [], list(range(1, 101))
    for turn_id in everyone:
        is_spoken = turn_id % 3 == 0
        spoken += [turn_id] if is_spoken else []
        metrics.add_events((spoken_turn if is_spoken else typed_turn)(turn_id, turn_id * 10_000.0))
    assert metrics.turns == (1, 100)
    shown = everyone[-SHOWN_TURNS:]
    for metric, series in metrics.series.items():
        of_speech = metric in (Metric.VOICE_TO_VOICE, Metric.CONFIRM_TO_SOUND, Metric.ENDPOINTING)
        expected = [turn for turn in shown if turn in spoken] if of_speech else shown
        assert series.points().turns.tolist() == expected, metric
        summary = series.summary()
        assert summary is not None
        assert summary.last == series.points().medians[-1]


def test_figures_of_turns_that_left_the_axis_are_gone() -> None:
    metrics = LatencyMetrics()
    metrics.add_events(spoken_turn(1))
    for turn_id in range(2, SHOWN_TURNS + 2):
        metrics.add_events(typed_turn(turn_id, turn_id * 10_000.0))
    assert metrics.summary(Metric.VOICE_TO_VOICE) is None
    metrics.add_event(event("voice_to_voice", 1000, 840, turn_id=1))  # late
    assert metrics.summary(Metric.VOICE_TO_VOICE) is None
    assert metrics.summary(Metric.TTFA) is not None


def test_playback_level_is_drawn_over_seconds() -> None:
    metrics = LatencyMetrics()
    metrics.add_event(event("playback_buffer", 1000, 0, level_ms=120.0))
    metrics.add_event(event("playback_buffer", 1500, 0, level_ms=80.0))
    assert metrics.playback.x.tolist() == [0.0, 0.5]
    assert metrics.playback.y.tolist() == [120.0, 80.0]


def test_interruptions_stand_on_the_axis_of_the_playback() -> None:
    metrics = LatencyMetrics()
    metrics.add_event(event("playback_buffer", 1000, 0, level_ms=120.0))
    for at_ms, kind in ((1200, "interrupt"), (1900, "resume"), (2000, "confirm"), (2500, "cut")):
        metrics.add_event(event("decision", at_ms, 0, kind=kind, at_s=at_ms / 1e3))
    assert list(metrics.interruptions) == [("interrupt", 0.2), ("resume", 0.9), ("cut", 1.5)]


def test_counters_add_up() -> None:
    metrics = LatencyMetrics()
    metrics.add_event(event("underrun", 0, 0))
    metrics.add_event(event("underrun", 1, 0, count=2))
    metrics.add_event(event("dropped_input", 2, 0, count=480))
    assert (metrics.underruns, metrics.dropped_input) == (3, 480)


@pytest.mark.parametrize("value", [math.nan, math.inf, "n/a"])
def test_values_that_are_no_numbers_are_passed_over(value: float | str) -> None:
    metrics = LatencyMetrics()
    metrics.add_event(event("reply", 0, 10, rtf_total=value))
    assert metrics.summary(Metric.RTF_TOTAL) is None


def test_cancelled_reply_does_not_count_as_rtf() -> None:
    metrics = LatencyMetrics()
    metrics.add_event(event("reply", 0, 10, rtf_total=0.9, finish_reason="cancelled"))
    assert metrics.summary(Metric.RTF_TOTAL) is None


def test_what_a_turn_took_from_an_outage_on_is_counted_apart() -> None:
    metrics = LatencyMetrics()
    metrics.add_events(spoken_turn(1))
    metrics.add_event(event("endpointing", 20_000, 600, 2))
    metrics.add_event(event("outage", 21_000, 13_000, 2, reason="connection"))
    metrics.add_event(event("first_audio", 20_600, 13_633, 2))
    metrics.add_event(event("voice_to_voice", 20_000, 14_700, 2))
    metrics.add_event(event("reply", 20_600, 15_000, 2, rtf_total=4.0, finish_reason="stop"))
    metrics.add_events(spoken_turn(3, 60_000.0))
    metrics.add_event(event("outage", 90_000, 3_600_000, 0, reason="standstill"))
    metrics.add_events(spoken_turn(4, 4_000_000.0))
    assert metrics.outages == 2
    for metric, value in ((Metric.TTFA, 200.0), (Metric.VOICE_TO_VOICE, 840.0), (Metric.RTF_TOTAL, 0.3)):
        assert metrics.series[metric].points().medians.tolist() == [value] * 3, metric
    assert metrics.series[Metric.ENDPOINTING].points().turns.tolist() == [1, 2, 3, 4]
    turn = metrics.turn(2)
    assert turn is not None
    assert turn.ttfa_ms == 13_633.0, "the turn itself shows how long it took"
