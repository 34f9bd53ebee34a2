"""A computer that sleeps, or a process that is stopped, in the middle of a conversation."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from app.audio.wav_streams import WavSpeaker
from app.session.clocks import LEAST_STANDSTILL_NS, RealClock, Standstill, VirtualClock
from app.session.commands import PlaySample, Start
from app.session.events import (
    ErrorRaised,
    PlaybackFinished,
    PlaybackStarted,
    ReplyCut,
    SampleFinished,
    SessionState,
    StateChanged,
    Timing,
    TurnCancelled,
    TurnCommitted,
    TurnOpened,
)
from app.session.session import Session
from engine_runtime.types import Pcm
from tests.doubles.pulse_server import PulseServer
from tests.doubles.scripted_engine import Script, ScriptedEngine
from tests.doubles.scripted_microphone import ScriptedMicrophone
from tests.doubles.stepped_clock import SteppedClock
from tests.tools.session_driver import Driver, running, silence, speech, write_question

HOUR_S = 3_600
QUESTION = Path(__file__).parents[2] / "data" / "speech" / "question.wav"


def outages(driver: Driver) -> list[tuple[int, object, int]]:
    found = [event.event for event in driver.of(Timing) if event.event.name == "outage"]
    return [(event.turn_id, event.attributes["reason"], round(event.duration_ms / 1e3)) for event in found]


class JumpingClock(SteppedClock):
    """Jumps ahead by an hour once, between two rounds."""

    def __init__(self, at_s: float) -> None:
        super().__init__()
        self._at_ns = round(at_s * 1e9)
        self.has_jumped = False

    def tick(self, idle: threading.Event, *, is_active: bool) -> None:
        super().tick(idle, is_active=is_active)
        if not self.has_jumped and self._now_ns >= self._at_ns:
            self.has_jumped = True
            self._now_ns += HOUR_S * 1_000_000_000


class SetClock(VirtualClock):
    """A clock that the test sets."""

    def set(self, seconds: float) -> None:
        self._now_ns = round(seconds * 1e9)


def test_a_round_may_take_long_where_devices_open() -> None:
    clock = SetClock()
    clock.set(50)
    standstill = Standstill(clock)
    for now_s, with_devices, away_s in (
        (54, False, 0),
        (74, True, 0),
        (80, False, 6),
        (80, False, 0),
        (120, True, 40),
    ):
        clock.set(now_s)
        assert standstill.check(with_devices=with_devices) == away_s
    assert standstill.began_ns == 80 * 1_000_000_000


def test_the_real_clock_counts_time_asleep() -> None:
    clock = RealClock()
    before = clock.wall_ns()
    assert clock.wall_ns() >= before > 0


def hold_seconds(driver: Driver) -> float:
    """Of the latest reply, the deliberate wait before its playback."""
    return [event.event for event in driver.of(Timing) if event.event.name == "playback_hold"][
        -1
    ].duration_ns / 1e9


@pytest.mark.slow
def test_a_turn_that_was_open_is_dropped_and_the_next_one_answered() -> None:
    microphone = ScriptedMicrophone(silence(0.5), speech(1.0), silence(2.0), speech(1.0))
    heard: list[Pcm] = []
    speaker = WavSpeaker(48_000, heard.append)
    with running(ScriptedEngine(), clock=JumpingClock(1.0), microphone=microphone, speaker=speaker) as driver:
        driver.session.send(Start())
        driver.await_event(PlaybackFinished, 2)
        assert [(event.turn_id, event.reason) for event in driver.of(TurnCancelled)] == [(1, "stopped")]
        (error,) = driver.of(ErrorRaised)
        assert (
            error.problem.what_is_wrong
            == "The program was suspended for 3,600 s, as when the computer sleeps."
        )
        # The rest of the sentence is a turn of its own, and so is the next one.
        assert [event.turn_id for event in driver.of(TurnCommitted)] == [2, 3]
        assert driver.of(TurnCommitted)[1].seconds == pytest.approx(1.0, abs=0.1)
        endpointing = [e.event.duration_ms for e in driver.of(Timing) if e.event.name == "endpointing"]
        assert endpointing == [pytest.approx(640, abs=60)] * 2
        assert microphone.opened == 2
        assert outages(driver) == [(1, "standstill", 3_600)]
    assert sum(map(len, heard)) < 48_000 * 60  # nobody played an hour of silence


@pytest.mark.slow
@pytest.mark.parametrize("step_s", [0.0, 0.3], ids=["played", "being made"])
def test_a_reply_is_cut_to_what_was_heard(step_s: float) -> None:
    microphone = ScriptedMicrophone(silence(0.5), speech(1.0), silence(5.0), speech(1.0))
    script = Script(chunks=10, step_s=step_s, chunk_s=0.8)
    with running(ScriptedEngine(script), clock=JumpingClock(4.0), microphone=microphone) as driver:
        driver.session.send(Start())
        driver.await_event(PlaybackFinished)
        (cut,) = driver.of(ReplyCut)
        assert cut.reason == "stopped"
        assert cut.heard_s == pytest.approx(4.0 - 2.2 - step_s, abs=0.4)
        assert len(driver.of(ErrorRaised)) == 1
        assert [event.turn_id for event in driver.of(TurnOpened)] == [1, 2]
        # The hour says nothing about how late the packets of a reply come.
        assert hold_seconds(driver) < 1.0


@pytest.mark.slow
def test_an_idle_session_says_nothing() -> None:
    microphone = ScriptedMicrophone(silence(2.0), speech(1.0))
    with running(ScriptedEngine(), clock=JumpingClock(1.0), microphone=microphone) as driver:
        driver.session.send(Start())
        driver.await_event(PlaybackFinished)
        assert driver.of(ErrorRaised) == []
        assert driver.of(TurnCancelled) == []
        assert outages(driver) == [(0, "standstill", 3_600)]
        assert isinstance(driver.engine.clock, JumpingClock)
        assert driver.engine.clock.has_jumped


@pytest.mark.slow
def test_a_file_waits(tmp_path: Path) -> None:
    question = write_question(tmp_path / "question.wav", silence(0.8), speech(1.0), silence(0.3))
    with running(ScriptedEngine(), clock=JumpingClock(1.2)) as driver:
        driver.session.send(PlaySample(question))
        driver.await_event(SampleFinished)
        (committed,) = driver.of(TurnCommitted)
        assert committed.seconds == pytest.approx(1.0, abs=0.07)
        assert driver.of(ErrorRaised) == []


@pytest.mark.slow
@pytest.mark.pulse
def test_a_process_that_is_stopped_goes_on(pulse_server: PulseServer) -> None:
    """SIGSTOP while the user speaks: what the sound server kept of that time is not heard in a burst."""
    session = Session(ScriptedEngine)
    driver = Driver(session, ScriptedEngine())
    session.start()
    try:
        session.send(Start())
        driver.until(lambda: driver.of(StateChanged)[-1:] == [StateChanged(SessionState.LISTENING)])
        pulse_server.speak(QUESTION)
        driver.await_event(TurnOpened)
        with subprocess.Popen(
            ["sh", "-c", f"sleep {LEAST_STANDSTILL_NS / 1e9 + 1}; kill -CONT {os.getpid()}"]
        ):
            os.kill(os.getpid(), signal.SIGSTOP)
        error = driver.await_event(ErrorRaised)
        assert error.problem.what_is_wrong.startswith("The program was suspended for ")
        assert [event.reason for event in driver.of(TurnCancelled)] == ["stopped"]
        driver.until(lambda: driver.of(StateChanged)[-1] == StateChanged(SessionState.LISTENING))
        assert driver.of(TurnCommitted) == []
        pulse_server.speak(QUESTION)
        driver.await_event(PlaybackStarted)
        assert len(driver.of(TurnCommitted)) == 1
        assert len(driver.of(ErrorRaised)) == 1
    finally:
        assert session.stop()
