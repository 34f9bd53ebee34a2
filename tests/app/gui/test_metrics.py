"""The Qt-free model behind the latency view."""

from __future__ import annotations

import math

import pytest

from app.gui.metrics import LatencyMetrics, LatencyStage, Metric, Rating
from app.gui.series import SHOWN_TURNS
from engine_runtime.timing import TimingEvent

MS = 1_000_000


def event(
    name: str, start_ms: float, duration_ms: float, turn_id: int = 1, **attributes: float | int | str
) -> TimingEvent:
    return TimingEvent(name, turn_id, int(start_ms * MS), int(duration_ms * MS), "engine", attributes)


def spoken_turn(turn_id: int = 1, at_ms: float = 1000.0) -> list[TimingEvent]:
    """Last speech sample at `at_ms`, commit 600 later, first sound 200 after that, device 40."""
    commit = at_ms + 600
    return [
        event("prefill", at_ms - 500, 12, turn_id, rows=16, cached_rows=0),
        event("endpointing", at_ms, 600, turn_id),
        event("commit", commit, 0, turn_id),
        event("prefill", commit + 5, 20, turn_id, rows=6, rows_at_commit=6, phase="commit"),
        event("step", commit + 30, 10, turn_id, index=0),
        event("step", commit + 45, 10, turn_id, index=1),
        event("token2mel", commit + 60, 90, turn_id, chunk=0, frames=20, audio_ms=400),
        event("vocoder", commit + 150, 50, turn_id, chunk=0, audio_ms=400),
        event("first_audio", commit, 200, turn_id),
        event("step", commit + 210, 10, turn_id, index=2),
        event("voice_to_voice", at_ms, 840, turn_id),
        event("reply", commit, 900, turn_id, rtf_total=0.3, rtf_steady=0.25, first_chunk_ratio=0.5),
    ]


def test_events_become_series() -> None:
    metrics = LatencyMetrics()
    metrics.extend(spoken_turn())
    held = {metric: series.points().medians.tolist() for metric, series in metrics.series.items()}
    assert held[Metric.PREFILL] == [16.0]
    assert held[Metric.PREFILL_ROWS] == [11.0]
    assert held[Metric.ROWS_AT_COMMIT] == [6.0]
    assert held[Metric.STEP] == [10.0]
    assert metrics.series[Metric.STEP].summary().count == 3  # type: ignore[union-attr]
    assert held[Metric.TTFA] == [200.0]
    assert held[Metric.VOICE_TO_VOICE] == [840.0]
    assert held[Metric.RTF_STEADY] == [0.25]
    assert held[Metric.CHUNK_AUDIO] == [400.0]
    turn = metrics.turn(1)
    assert turn is not None
    assert turn.ttfa_ms == 200.0
    assert turn.rtf_total == 0.3


def typed_turn(turn_id: int, at_ms: float) -> list[TimingEvent]:
    """The same without speech."""
    return [
        each for each in spoken_turn(turn_id, at_ms) if each.name not in ("endpointing", "voice_to_voice")
    ]


def test_every_point_stands_at_its_turn() -> None:
    metrics = LatencyMetrics()
    spoken, everyone = [], list(range(1, 101))
    for turn_id in everyone:
        is_spoken = turn_id % 3 == 0
        spoken += [turn_id] if is_spoken else []
        metrics.extend((spoken_turn if is_spoken else typed_turn)(turn_id, turn_id * 10_000.0))
    assert metrics.turns == (1, 100)
    shown = everyone[-SHOWN_TURNS:]
    for metric, series in metrics.series.items():
        of_speech = metric in (Metric.VOICE_TO_VOICE, Metric.ENDPOINTING)
        expected = [turn for turn in shown if turn in spoken] if of_speech else shown
        assert series.points().turns.tolist() == expected, metric
        assert series.summary().last == series.points().medians[-1]  # type: ignore[union-attr]


def test_figures_of_turns_that_left_the_axis_are_gone() -> None:
    metrics = LatencyMetrics()
    metrics.extend(spoken_turn(1))
    for turn_id in range(2, SHOWN_TURNS + 2):
        metrics.extend(typed_turn(turn_id, turn_id * 10_000.0))
    assert metrics.summary(Metric.VOICE_TO_VOICE) is None
    metrics.add(event("voice_to_voice", 1000, 840, turn_id=1))  # late
    assert metrics.summary(Metric.VOICE_TO_VOICE) is None
    assert metrics.summary(Metric.TTFA) is not None


def test_playback_level_is_drawn_over_seconds() -> None:
    metrics = LatencyMetrics()
    metrics.add(event("playback_buffer", 1000, 0, level_ms=120.0))
    metrics.add(event("playback_buffer", 1500, 0, level_ms=80.0))
    assert metrics.playback.x.tolist() == [0.0, 0.5]
    assert metrics.playback.y.tolist() == [120.0, 80.0]


def test_counters_add_up() -> None:
    metrics = LatencyMetrics()
    metrics.add(event("underrun", 0, 0))
    metrics.add(event("underrun", 1, 0, count=2))
    metrics.add(event("dropped_input", 2, 0, count=480))
    assert (metrics.underruns, metrics.dropped_input) == (3, 480)


@pytest.mark.parametrize("value", [math.nan, math.inf, "n/a"])
def test_values_that_are_no_numbers_are_passed_over(value: float | str) -> None:
    metrics = LatencyMetrics()
    metrics.add(event("reply", 0, 10, rtf_total=value))
    assert metrics.summary(Metric.RTF_TOTAL) is None


def test_cancelled_reply_does_not_count_as_rtf() -> None:
    metrics = LatencyMetrics()
    metrics.add(event("reply", 0, 10, rtf_total=0.9, finish_reason="cancelled"))
    assert metrics.summary(Metric.RTF_TOTAL) is None


def test_waterfall_of_a_spoken_turn() -> None:
    metrics = LatencyMetrics()
    metrics.extend(spoken_turn())
    waterfall = metrics.waterfall()
    assert waterfall is not None
    assert waterfall.is_spoken
    assert waterfall.reaches_device
    assert waterfall.end_ms == pytest.approx(840.0)
    totals = {stage: waterfall.total_ms(stage) for stage in LatencyStage}
    assert totals == pytest.approx(
        {
            LatencyStage.ENDPOINTING: 600.0,
            LatencyStage.PREFILL: 20.0,  # prefill during speech is not on the critical path
            LatencyStage.STEP: 20.0,  # nor is the step after the first sound
            LatencyStage.TOKEN2MEL: 90.0,
            LatencyStage.VOCODER: 50.0,
            LatencyStage.DEVICE: 40.0,
        }
    )
    assert waterfall.other_ms == pytest.approx(20.0)
    assert min(bar.start_ms for bar in waterfall.bars) == 0.0


def test_the_delay_of_the_commit_is_between_the_stages() -> None:
    metrics = LatencyMetrics()
    metrics.extend([event("endpointing", 0, 600), event("commit", 608, 0), event("first_audio", 608, 100)])
    waterfall = metrics.waterfall()
    assert waterfall is not None
    assert waterfall.total_ms(LatencyStage.ENDPOINTING) == 600.0
    assert metrics.series[Metric.ENDPOINTING].points().medians.tolist() == [600.0]
    assert waterfall.other_ms == pytest.approx(108.0)


def test_waterfall_of_a_typed_question_starts_at_the_commit() -> None:
    metrics = LatencyMetrics()
    metrics.extend(each for each in spoken_turn() if each.name not in ("endpointing", "voice_to_voice"))
    waterfall = metrics.waterfall()
    assert waterfall is not None
    assert not waterfall.is_spoken
    assert not waterfall.reaches_device
    assert waterfall.end_ms == pytest.approx(200.0)
    assert waterfall.total_ms(LatencyStage.ENDPOINTING) == 0.0


def test_waterfall_follows_the_last_turn_that_sounded() -> None:
    metrics = LatencyMetrics()
    assert metrics.waterfall() is None
    metrics.extend(spoken_turn(1, 1000))
    metrics.add(event("commit", 9000, 0, turn_id=2))
    waterfall = metrics.waterfall()
    assert waterfall is not None
    assert waterfall.turn_id == 1
    metrics.extend(spoken_turn(3, 20_000))
    waterfall = metrics.waterfall()
    assert waterfall is not None
    assert waterfall.turn_id == 3


def test_a_turn_that_continued_counts_from_its_last_commit() -> None:
    metrics = LatencyMetrics()
    metrics.extend(spoken_turn(1, 1000))
    metrics.extend(spoken_turn(1, 3000))
    waterfall = metrics.waterfall()
    assert waterfall is not None
    assert waterfall.end_ms == pytest.approx(840.0)
    assert waterfall.total_ms(LatencyStage.STEP) == pytest.approx(20.0)


def test_span_across_the_first_sound_is_cut_there() -> None:
    metrics = LatencyMetrics()
    metrics.extend(
        [
            event("commit", 0, 0),
            event("step", 10, 100),
            event("first_audio", 0, 60),
        ]
    )
    waterfall = metrics.waterfall()
    assert waterfall is not None
    assert waterfall.total_ms(LatencyStage.STEP) == pytest.approx(50.0)
    assert waterfall.other_ms == pytest.approx(10.0)


def rated(probability: float, stage: str, asked_ms: float) -> list[TimingEvent]:
    """The detector's answer about a pause, 64 ms after it was asked."""
    answered_ms = asked_ms + 64
    return [
        event(
            "end_of_turn",
            0,
            50,
            probability=probability,
            stage=stage,
            asked_ms=asked_ms,
            answered_ms=answered_ms,
        ),
    ]


def test_the_waterfall_shows_the_answers_about_the_last_pause() -> None:
    metrics = LatencyMetrics()
    metrics.extend([*rated(0.3, "unlikely", 160), *rated(0.4, "unlikely", 960)])
    metrics.extend([*rated(0.2, "unlikely", 160), *rated(0.95, "likely", 960), *spoken_turn()])
    waterfall = metrics.waterfall()
    assert waterfall is not None
    assert waterfall.ratings == (Rating(0.2, "unlikely", 160, 224), Rating(0.95, "likely", 960, 1_024))


def test_an_answer_that_came_too_late_is_not_shown() -> None:
    metrics = LatencyMetrics()
    metrics.extend([*rated(0.3, "unlikely", 160), *rated(0.99, "late", 160), *spoken_turn()])
    waterfall = metrics.waterfall()
    assert waterfall is not None
    assert waterfall.ratings == ()
