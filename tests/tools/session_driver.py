"""Drives a session on a virtual clock with WAV streams, and collects its events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np

from app.audio.devices import DeviceList
from app.audio.streams import AudioInput, AudioOutput
from app.audio.wav import write_wav
from app.audio.wav_streams import WavSpeaker
from app.dialog.smart_turn import EndOfTurnDetector
from app.session.clocks import Clock
from app.session.events import Event
from app.session.session import Session
from app.session.session_settings import SessionSettings
from app.session.transcriber import Transcriber
from app.session.turn_control import TurnControl
from engine_runtime.errors import AudioDeviceError, Problem
from engine_runtime.types import Pcm
from tests.doubles.scripted_engine import LoudnessVad, ScriptedEngine
from tests.doubles.stepped_clock import SteppedClock

RATE = 16_000
AnyEvent = TypeVar("AnyEvent", bound=Event)


def speech(seconds: float, rate: int = RATE) -> Pcm:
    """Something loud."""
    return (0.3 * np.sin(2 * np.pi * 200 * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def silence(seconds: float, rate: int = RATE) -> Pcm:
    """Nothing."""
    return np.zeros(round(seconds * rate), dtype=np.float32)


class NoMicrophone:
    """A machine without a microphone."""

    def __init__(self) -> None:
        from app.audio.ring import Ring

        self.sample_rate = RATE
        self.ring = Ring(RATE)
        self.name = ""
        self.latency_s = 0.0
        self.dropped_samples = 0

    def open(self, device: str | None, latency_s: float) -> None:
        raise AudioDeviceError("No microphone was found.", "Connect one; it is used as soon as it is found.")

    def close(self) -> None:
        """Does nothing."""

    def service(self, now_ns: int) -> None:
        """Nothing comes."""

    def is_lost(self) -> bool:
        return False

    def sample_time_ns(self, index: float) -> int:
        return 0


class Driver:
    """A running session and its events."""

    def __init__(self, session: Session, engine: ScriptedEngine) -> None:
        self.session = session
        self._loop = session._loop
        self.engine = engine
        self.events: list[Event] = []

    def until(self, condition: Callable[[], bool], limit_s: float = 60.0) -> None:
        """Collect events until `condition` holds; the limit leaves room for a busy machine."""
        end = time.monotonic() + limit_s
        while True:
            self.events += self.session.poll()
            if condition():
                return
            assert time.monotonic() < end, f"did not happen; last events: {self.events[-15:]}"
            time.sleep(0.001)

    def until_idle(self) -> None:
        """Wait until no thread of the session has anything left to do."""
        self.until(self._loop._workers.pending.idle.is_set)

    @property
    def turns(self) -> TurnControl:
        """What the dialog thread knows of its turns, for tests that look or reach into it."""
        return self._loop.turns

    def of(self, kind: type[AnyEvent]) -> list[AnyEvent]:
        """All events of one kind so far."""
        return [event for event in self.events if isinstance(event, kind)]

    def await_event(self, kind: type[AnyEvent], count: int = 1) -> AnyEvent:
        """Wait for the `count`th event of a kind."""
        self.until(lambda: len(self.of(kind)) >= count)
        return self.of(kind)[count - 1]


@contextmanager
def running(
    engine: ScriptedEngine,
    settings: SessionSettings | None = None,
    *,
    clock: Clock | None = None,
    speaker: AudioOutput | None = None,
    microphone: AudioInput | None = None,
    detector: EndOfTurnDetector | None = None,
    transcriber: Transcriber | None = None,
) -> Iterator[Driver]:
    """A started session without sound devices. The engine works on its clock."""
    engine.clock = clock or SteppedClock()
    session = Session(
        lambda: engine,
        settings or SessionSettings(hear_samples=False),
        microphone or NoMicrophone(),
        speaker or WavSpeaker(48_000),
        clock=engine.clock,
        vad=LoudnessVad(),
        end_of_turn=(lambda: detector) if detector is not None else None,
        find_devices=lambda: DeviceList((), (), Problem("none here")),
        look_for_devices=lambda: None,
        transcriber=transcriber,
    )
    session.start()
    try:
        yield Driver(session, engine)
    finally:
        assert session.stop(), "a thread did not end"


def write_question(path: Path, *parts: Pcm) -> Path:
    """A WAV file of these parts."""
    write_wav(path, np.concatenate(parts), RATE)
    return path
