"""The waterfall of a turn."""

from __future__ import annotations

import pytest

from app.gui.common.turn_times import LOCAL_STAGES, REMOTE_STAGES, REPORTED_STAGES, LatencyStage, Rating
from app.gui.latency.metrics import LatencyMetrics, Metric
from engine_runtime.timing import TimingEvent
from tests.doubles.timed_turns import event, spoken_turn, typed_turn


def test_waterfall_of_a_spoken_turn() -> None:
    metrics = LatencyMetrics()
    metrics.add_events(spoken_turn())
    waterfall = metrics.waterfall()
    assert waterfall is not None
    assert waterfall.is_spoken
    assert waterfall.reaches_device
    assert waterfall.end_ms == pytest.approx(840.0)
    totals = {stage: waterfall.total_ms(stage) for stage in LOCAL_STAGES}
    assert totals == pytest.approx(
        {
            LatencyStage.ENDPOINTING: 600.0,
            LatencyStage.PREFILL: 20.0,  # prefill during speech is not on the critical path
            LatencyStage.STEP: 20.0,  # nor is the step after the first sound
            LatencyStage.TOKEN2MEL: 90.0,
            LatencyStage.VOCODER: 50.0,
            LatencyStage.HOLD: 25.0,
            LatencyStage.DEVICE: 15.0,
        }
    )
    assert waterfall.other_ms == pytest.approx(20.0)
    assert min(bar.start_ms for bar in waterfall.bars) == 0.0


def test_the_delay_of_the_commit_is_between_the_stages() -> None:
    metrics = LatencyMetrics()
    metrics.add_events(
        [event("endpointing", 0, 600), event("commit", 608, 0), event("first_audio", 608, 100)]
    )
    waterfall = metrics.waterfall()
    assert waterfall is not None
    assert waterfall.total_ms(LatencyStage.ENDPOINTING) == 600.0
    assert metrics.series[Metric.ENDPOINTING].points().medians.tolist() == [600.0]
    assert waterfall.other_ms == pytest.approx(108.0)


def test_waterfall_of_a_typed_question_starts_at_the_commit() -> None:
    metrics = LatencyMetrics()
    metrics.add_events(typed_turn())
    waterfall = metrics.waterfall()
    assert waterfall is not None
    assert not waterfall.is_spoken
    assert not waterfall.reaches_device
    assert waterfall.end_ms == pytest.approx(225.0)  # the hold is known, the device is not
    assert waterfall.total_ms(LatencyStage.ENDPOINTING) == 0.0
    assert waterfall.total_ms(LatencyStage.HOLD) == 25.0


def test_a_reply_that_was_begun_before_the_turn_was_sure() -> None:
    """Commit 160 ms after the last speech, first sample 200 ms later, the turn sure at 500, sound at 530."""
    speculative = [
        each for each in spoken_turn(at_ms=560) if each.name not in ("endpointing", "voice_to_voice")
    ]
    metrics = LatencyMetrics()
    metrics.add_event(event("endpointing", 1_000, 500))
    metrics.add_events(each for each in speculative if each.name != "playback_hold")  # its commit is at 1,160
    metrics.add_event(event("voice_to_voice", 1_000, 530))
    waterfall = metrics.waterfall()
    assert waterfall is not None
    assert waterfall.is_speculative
    assert waterfall.end_ms == pytest.approx(530.0)
    early = {bar.stage for bar in waterfall.bars if bar.is_speculative}
    assert early == {LatencyStage.PREFILL, LatencyStage.STEP, LatencyStage.TOKEN2MEL, LatencyStage.VOCODER}
    assert waterfall.total_ms(LatencyStage.HOLD) == 0.0
    assert waterfall.total_ms(LatencyStage.DEVICE) == pytest.approx(30.0)
    assert waterfall.other_ms == 0.0


def test_waterfall_follows_the_last_turn_that_sounded() -> None:
    metrics = LatencyMetrics()
    assert metrics.waterfall() is None
    metrics.add_events(spoken_turn(1, 1000))
    metrics.add_event(event("commit", 9000, 0, turn_id=2))
    waterfall = metrics.waterfall()
    assert waterfall is not None
    assert waterfall.turn_id == 1
    metrics.add_events(spoken_turn(3, 20_000))
    waterfall = metrics.waterfall()
    assert waterfall is not None
    assert waterfall.turn_id == 3


def test_a_turn_that_continued_counts_from_its_last_commit() -> None:
    metrics = LatencyMetrics()
    metrics.add_events(spoken_turn(1, 1000))
    metrics.add_events(spoken_turn(1, 3000))
    waterfall = metrics.waterfall()
    assert waterfall is not None
    assert waterfall.end_ms == pytest.approx(840.0)
    assert waterfall.total_ms(LatencyStage.STEP) == pytest.approx(20.0)


def test_span_across_the_first_sound_is_cut_there() -> None:
    metrics = LatencyMetrics()
    metrics.add_events(
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


def rated(probability: float, stage: str, asked_ms: float, by: str = "detector") -> list[TimingEvent]:
    """An answer about a pause, 64 ms after it was asked."""
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
            by=by,
        ),
    ]


def test_the_waterfall_shows_the_answers_about_the_last_pause() -> None:
    metrics = LatencyMetrics()
    metrics.add_events([*rated(0.3, "unlikely", 160), *rated(0.4, "unlikely", 960)])
    metrics.add_events([*rated(0.2, "unlikely", 160), *rated(0.95, "likely", 960), *spoken_turn()])
    waterfall = metrics.waterfall()
    assert waterfall is not None
    assert waterfall.ratings == (Rating(0.2, "unlikely", 160, 224), Rating(0.95, "likely", 960, 1_024))


def test_the_language_model_answers_about_the_same_pause() -> None:
    metrics = LatencyMetrics()
    for pause in (("unlikely", 0.3, "unfinished", 0.1), ("unlikely", 0.4, "finished", 0.9)):
        metrics.add_events(rated(pause[1], pause[0], 160))
        metrics.add_events(rated(pause[3], pause[2], 160, by="language model"))
    metrics.add_events(spoken_turn())
    waterfall = metrics.waterfall()
    assert waterfall is not None
    assert [(rating.probability, rating.by) for rating in waterfall.ratings] == [
        (0.4, "detector"),
        (0.9, "language model"),
    ]


def test_an_answer_that_came_too_late_is_not_shown() -> None:
    metrics = LatencyMetrics()
    metrics.add_events([*rated(0.3, "unlikely", 160), *rated(0.99, "late", 160), *spoken_turn()])
    waterfall = metrics.waterfall()
    assert waterfall is not None
    assert waterfall.ratings == ()


def test_a_hold_that_was_over_early_does_not_move_the_device() -> None:
    metrics = LatencyMetrics()
    metrics.add_events(typed_turn())
    metrics.add_event(event("endpointing", 1_000, 900))
    metrics.add_event(event("playback_hold", 1_900, -2))
    metrics.add_event(event("voice_to_voice", 1_000, 930))
    waterfall = metrics.waterfall()
    assert waterfall is not None
    device = waterfall.bars[-1]
    assert (device.stage, device.start_ms, device.is_speculative) == (LatencyStage.DEVICE, 900.0, False)


def test_a_server_and_the_network_have_bars_of_their_own() -> None:
    metrics = LatencyMetrics()
    metrics.add_event(event("commit", 1_000, 0))
    metrics.add_event(event("first_audio", 1_000, 200))
    local = metrics.waterfall()
    assert local is not None
    assert local.stages == LOCAL_STAGES
    metrics.add_event(event("server", 1_000, 180))
    metrics.add_event(event("network", 1_180, 20))
    waterfall = metrics.waterfall()
    assert waterfall is not None
    assert waterfall.stages == REMOTE_STAGES
    totals = [waterfall.total_ms(stage) for stage in (LatencyStage.SERVER, LatencyStage.NETWORK)]
    assert totals == pytest.approx([180.0, 20.0])
    assert waterfall.other_ms == pytest.approx(0.0)


def test_a_server_that_says_what_its_time_went_to_has_bars_for_that() -> None:
    metrics = LatencyMetrics()
    metrics.add_event(event("commit", 1_000, 0))
    metrics.add_event(event("first_audio", 1_000, 200))
    metrics.add_event(event("server", 1_000, 180))
    metrics.add_event(event("network", 1_180, 20))
    for name, start_ms, length_ms in (("prefill", 1_010, 50), ("step", 1_060, 100), ("step", 1_500, 5)):
        metrics.add_event(event(name, start_ms, length_ms))
    waterfall = metrics.waterfall()
    assert waterfall is not None
    assert waterfall.stages == REPORTED_STAGES
    totals = {stage: waterfall.total_ms(stage) for stage in LatencyStage if waterfall.total_ms(stage)}
    assert totals == pytest.approx(
        {LatencyStage.PREFILL: 50.0, LatencyStage.STEP: 100.0, LatencyStage.NETWORK: 20.0}
    )
    assert waterfall.other_ms == pytest.approx(30.0), "in the server, before and after them"
