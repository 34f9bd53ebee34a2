"""Durations that count only once they are released."""

from __future__ import annotations

import pytest

from app.session import held_timings
from app.session.held_timings import HeldTimings, KeptTimings
from engine_runtime.timing import TimingBus, TimingEvent


def test_events_wait_for_the_release_and_keep_their_order_and_their_times() -> None:
    times = iter(range(0, 1_000, 10))
    bus = TimingBus(lambda: next(times))
    heard: list[TimingEvent] = []
    bus.subscribe(heard.append)
    held = HeldTimings(bus)
    with held.span("prefill", 1, rows=3):
        pass
    first = held.emit("step", 1, 20, 5)
    bus.emit("pause", 1, 30, 0)
    assert [event.name for event in heard] == ["pause"]
    assert held.count("step") == 1
    held.release()
    last = held.emit("step", 1, 40, 5)
    assert [event.name for event in heard] == ["pause", "prefill", "step", "step"]
    assert (heard[1].start_ns, heard[1].duration_ns, heard[1].attributes) == (0, 10, {"rows": 3})
    assert heard[2:] == [first, last]
    assert held.count("step") == 0


def test_the_first_events_are_kept_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_timings, "_MOST_KEPT", 2)
    bus, heard = TimingBus(), list[TimingEvent]()
    bus.subscribe(heard.append)
    kept = KeptTimings(bus)
    for start_ns in range(3):
        kept.emit("step", 1, start_ns, 5)
    bus.emit("step", 2, 9, 5)
    assert [event.start_ns for event in heard] == [0, 1, 2, 9]
    assert [event.start_ns for event in kept.events] == [0, 1]
