"""Durations on their way from a stage to the listeners."""

from __future__ import annotations

import pytest

from engine_runtime.timing import TimingBus, TimingEvent


def test_a_negative_duration_is_logged_and_reaches_no_listener(caplog: pytest.LogCaptureFixture) -> None:
    bus = TimingBus()
    heard: list[TimingEvent] = []
    bus.subscribe(heard.append)
    bus.emit("voice_to_voice", 7, 1_000, -5_398_000_000)
    bus.publish(TimingEvent("voice_to_voice", 8, 1_000, -1, "another bus"))
    assert heard == []
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert "voice_to_voice of turn 7 took -5398.000 ms" in caplog.text
    bus.emit("voice_to_voice", 9, 1_000, 0)
    assert [event.turn_id for event in heard] == [9]


def test_a_span_is_measured_by_the_clock_of_the_bus() -> None:
    times = iter((1_000, 4_000))
    bus = TimingBus(lambda: next(times))
    heard: list[TimingEvent] = []
    bus.subscribe(heard.append)
    with bus.span("step", 3, tokens=1) as attributes:
        attributes["tokens"] = 2
    assert (heard[0].start_ns, heard[0].duration_ns, heard[0].attributes) == (1_000, 3_000, {"tokens": 2})
