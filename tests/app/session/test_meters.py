"""The level of the loudspeaker, of a ring that is played, ducked and paused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.audio.echo_cancellation import EchoMeasurement
from app.audio.ring import DUCK_DB, PlaybackRing
from app.session.events import EchoMeasured, Event, Levels
from app.session.meters import Meters
from engine_runtime.timing import TimingBus, TimingEvent

RATE = 16_000
BLOCK = RATE // 20
"""50 ms."""


def test_the_output_level_is_that_of_what_sounds() -> None:
    ring = PlaybackRing(RATE, 160, 160)
    ring.write(np.full(8 * BLOCK, 0.5, np.float32))
    capture: Any = SimpleNamespace(take_level=lambda: (0.0, 0.0), source=None, echo=EchoMeasurement())
    playback: Any = SimpleNamespace(is_active=True, level_ms=0.0)
    out: Any = SimpleNamespace(ring=ring, gain=1.0, sample_rate=RATE, underruns=0)
    events: list[Event] = []
    meters = Meters(capture, playback, SimpleNamespace(dropped_samples=0), out, events.append)
    now_ns = 0

    def level() -> float:
        """After one more block."""
        nonlocal now_ns
        ring.play_into(np.empty(BLOCK, np.float32))
        now_ns += 50_000_000
        meters.service(now_ns, TimingBus(), 1, is_active=True)
        return [event.output_dbfs for event in events if isinstance(event, Levels)][-1]

    assert level() == pytest.approx(-6.0, abs=0.1)
    ring.duck()
    assert level() == pytest.approx(-6.0 - DUCK_DB, abs=0.1)
    ring.pause()
    assert level() == level() == -120.0
    ring.resume()
    assert level() == pytest.approx(-6.0, abs=0.1)


def test_a_measured_echo_is_published_once() -> None:
    measured = EchoMeasurement("cancelling", erl_db=12.0, erle_db=30.0, delay_ms=None)
    capture: Any = SimpleNamespace(take_level=lambda: (0.0, 0.0), source=None, echo=measured)
    playback: Any = SimpleNamespace(is_active=False, level_ms=0.0)
    out: Any = SimpleNamespace(ring=None, gain=1.0, sample_rate=RATE, underruns=0)
    events: list[Event] = []
    meters = Meters(capture, playback, SimpleNamespace(dropped_samples=0), out, events.append)
    bus, timings = TimingBus(), list[TimingEvent]()
    bus.subscribe(timings.append)
    for second in range(3):
        meters.service(second * 1_000_000_000, bus, 1, is_active=False)
    (echo,) = [event for event in timings if event.name == "echo"]
    assert echo.attributes["erl_db"] == 12.0
    assert "delay_ms" not in echo.attributes
    assert [event for event in events if isinstance(event, EchoMeasured)] == [EchoMeasured(measured)]
