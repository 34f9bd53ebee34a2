"""A conversation with an open loudspeaker, on a virtual clock, with the real voice activity detection: the
assistant neither interrupts nor answers itself, and the user still can interrupt it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typing_extensions import override

from app.audio import device_streams, echo_libraries
from app.audio.device_streams import BLOCK_FRAMES, DEVICE_RATE_HZ, SoundOutput
from app.audio.devices import DeviceList
from app.audio.echo_cancellation import AudioProcessing, EchoMode
from app.audio.resample import Resampler
from app.audio.wav import read_wav
from app.dialog.vad import SileroVad
from app.duplex.room import RATE, EchoRoom
from app.session.clocks import Clock, VirtualClock
from app.session.commands import ApplySettings, AskText, SetDevices, Start, Stop
from app.session.events import (
    DeviceNoticed,
    DevicesChanged,
    EchoMeasured,
    ErrorRaised,
    PlaybackFinished,
    PlaybackStarted,
    SessionState,
    StateChanged,
    Timing,
    TurnCancelled,
    TurnOpened,
)
from app.session.session import Session
from app.session.session_settings import SessionSettings
from app.settings import OverlapMode
from engine_runtime.conversation.turn import Conversation
from engine_runtime.timing import TimingBus
from engine_runtime.types import Modality, Pcm, ReplyAudio, ReplyDone, ReplyEvent
from engine_runtime.work import Task
from tests.doubles.scripted_engine import OUT_RATE, ScriptedEngine, ScriptedTurn
from tests.tools.session_driver import Driver

ROOT = Path(__file__).parents[3]
REPLIES = ("02-who-are-you", "06-capital-of-france", "08-colour-of-grass", "11-joke", "05-after-monday")
pytestmark = pytest.mark.slow


@cache
def spoken(name: str, rate: int) -> Pcm:
    folder = ROOT / "tests" / "data" / "speech" if name == "question" else ROOT / "assets" / "samples"
    pcm, own = read_wav(folder / f"{name}.wav")
    resampler = Resampler(own, rate)
    return np.concatenate([resampler.push(pcm), resampler.finish()])


class SpeakingEngine(ScriptedEngine):
    """Answers with two sentences of speech, about five seconds, other ones each time."""

    @override
    def open_turn(
        self,
        conversation: Conversation,
        turn_id: int,
        reply: Modality = Modality.SPEECH,
        timing: TimingBus | None = None,
    ) -> Task[ScriptedTurn]:
        turn = yield from super().open_turn(conversation, turn_id, reply, timing)
        words = [spoken(REPLIES[(2 * turn_id + part) % len(REPLIES)], OUT_RATE) for part in (0, 1)]
        pcm = np.concatenate(words)

        def speak(reply: Modality) -> Iterator[ReplyEvent]:
            for chunk, start in enumerate(range(0, len(pcm), 9_600)):
                yield ReplyAudio(turn_id, pcm[start : start + 9_600], OUT_RATE, chunk)
            yield ReplyDone(turn_id, Modality.SPEECH, "stop", "", (), len(pcm))

        turn.events_of = speak  # type: ignore[method-assign]
        return turn


class Loudspeaker(SoundOutput):
    """The loudspeaker of the program with its own callback, which the clock of the session calls."""

    def __init__(self, room: EchoRoom) -> None:
        super().__init__(lambda: DeviceList((), ()))
        self.room = room
        self.openings = 0
        self.goes = False
        self._next_ns: int | None = None

    def open(self, device: str | None, latency_s: float) -> None:
        self.close()
        self._prepare(DEVICE_RATE_HZ)
        self.name, self._next_ns = device or "default", None
        self.openings += 1

    def close(self) -> None:
        super().close()
        self.goes = False

    def is_lost(self) -> bool:
        return self.goes

    def service(self, now_ns: int) -> None:
        if not self.name:
            return
        no_times = SimpleNamespace(outputBufferDacTime=0.0)
        self._next_ns = now_ns if self._next_ns is None else self._next_ns
        while self._next_ns <= now_ns:
            self._next_ns += BLOCK_FRAMES * 1_000_000_000 // DEVICE_RATE_HZ
            block = np.zeros((BLOCK_FRAMES, 1), dtype=np.float32)
            self._callback(block, BLOCK_FRAMES, no_times, SimpleNamespace(output_underflow=False))
            if self.room.name:
                self.room.hear(block[:, 0])


class Room(EchoRoom):
    """A room whose microphone begins anew each time it is opened."""

    def open(self, device: str | None, latency_s: float) -> None:
        self.__init__(12, 100)  # type: ignore[misc]
        super().open(device, latency_s)


@contextmanager
def talking(
    room: EchoRoom,
    mode: EchoMode = "auto",
    *,
    overlap: OverlapMode = "pause",
    speaker: SoundOutput | None = None,
    clock: Clock | None = None,
) -> Iterator[Driver]:
    """A session that listens in the room; with a `speaker` of its own it does not listen yet."""
    engine = SpeakingEngine()
    session = Session(
        lambda: engine,
        SessionSettings(audio_processing=AudioProcessing(mode), overlap=overlap),
        room,
        speaker or room.speaker,
        clock=clock or VirtualClock(),
        vad=SileroVad(),
        find_devices=lambda: DeviceList((), ()),
        look_for_devices=lambda: None,
    )
    session.start()
    try:
        if speaker is None:
            session.send(Start())
        yield Driver(session, engine)
    finally:
        assert session.stop()


def ask(driver: Driver, room: EchoRoom, until: Callable[[], bool], after_s: float = 1.0) -> None:
    room.speak(0.6 * spoken("question", RATE), after_s)
    driver.until(until, 60)


def replies_heard(driver: Driver) -> int:
    return len(driver.of(PlaybackFinished))


def interruptions(driver: Driver) -> int:
    return len(driver.of(TurnCancelled))


def manners(driver: Driver) -> list[object]:
    """What happened to the replies that somebody seemed to speak over."""
    decisions = [event.event for event in driver.of(Timing) if event.event.name == "decision"]
    return [event.attributes["overlap"] for event in decisions if event.attributes["kind"] == "interrupt"]


def pauses(driver: Driver) -> int:
    """How often a reply was paused because somebody seemed to speak."""
    return len(manners(driver))


@pytest.mark.parametrize("loss_db", [6, 20])
def test_uncancelled_the_echo_pauses_the_replies(loss_db: float) -> None:
    room = EchoRoom(loss_db, 100)
    with talking(room, "off") as driver:
        ask(driver, room, lambda: pauses(driver) >= 4)  # after one question
    assert driver.of(ErrorRaised) == []


@pytest.mark.parametrize(
    ("loss_db", "delay_ms", "skew_ppm"),
    [(6, 50, 0), (6, 250, 300), (20, 50, 300), (20, 250, 0)],
)  # every pair of values; a loss in between is below
def test_the_assistant_hears_the_user_and_not_itself(
    loss_db: float, delay_ms: float, skew_ppm: float
) -> None:
    room = EchoRoom(loss_db, delay_ms, skew_ppm)
    with talking(room) as driver:
        for reply in range(1, 5):
            ask(driver, room, lambda reply=reply: replies_heard(driver) >= reply or interruptions(driver) > 0)  # type: ignore[misc]
        driver.until(lambda: bool(driver.of(EchoMeasured)))
    assert interruptions(driver) == pauses(driver) == 0
    assert len(driver.of(TurnOpened)) == 4
    assert driver.of(ErrorRaised) == []
    echo = driver.of(EchoMeasured)[-1].echo
    assert echo.state == "cancelling"
    assert echo.erl_db == pytest.approx(loss_db, abs=4)
    assert echo.delay_ms == pytest.approx(delay_ms, abs=5)
    assert echo.erle_db is not None
    assert echo.erle_db > 12
    measured = [event.event for event in driver.of(Timing) if event.event.name == "echo"]
    assert measured[-1].attributes["erl_db"] == echo.erl_db


@pytest.mark.parametrize(("loss_db", "delay_ms", "skew_ppm"), [(6, 100, 0), (12, 250, 300), (20, 50, 0)])
def test_the_user_can_interrupt_a_reply_that_echoes(loss_db: float, delay_ms: float, skew_ppm: float) -> None:
    room = EchoRoom(loss_db, delay_ms, skew_ppm)
    with talking(room, overlap="auto") as driver:
        for turn in range(3):
            heard = len(driver.of(PlaybackStarted))
            ask(driver, room, lambda heard=heard: len(driver.of(PlaybackStarted)) > heard)  # type: ignore[misc]
            room.speak(0.5 * spoken("question", RATE), after_s=0.7)
            driver.until(lambda turn=turn: interruptions(driver) > turn or replies_heard(driver) > turn, 60)  # type: ignore[misc]
            assert interruptions(driver) == turn + 1
            driver.until(lambda turn=turn: replies_heard(driver) > turn, 60)  # type: ignore[misc]
    assert {event.reason for event in driver.of(TurnCancelled)} == {"barge_in"}
    assert set(manners(driver)) == {"pause"}
    assert len(driver.of(TurnOpened)) == 6


@pytest.mark.parametrize("after_s", [0.3, 1.1])
def test_with_headphones_the_user_can_interrupt_and_is_not_processed(after_s: float) -> None:
    room = EchoRoom(6, 100)
    room.echo_gain = 0.0
    with talking(room) as driver:
        ask(driver, room, lambda: replies_heard(driver) == 1)
        heard = len(driver.of(PlaybackStarted))
        ask(driver, room, lambda: len(driver.of(PlaybackStarted)) > heard)
        driver.until(lambda: driver.of(EchoMeasured)[-1].echo.state == "no_echo")
        room.speak(0.25 * spoken("question", RATE), after_s)
        driver.until(lambda: interruptions(driver) > 0 or replies_heard(driver) > 1, 60)
        assert interruptions(driver) == 1
        # The reply repeats words of the user in the same voice, which may pass for an echo for a moment.
        driver.until(lambda: driver.of(EchoMeasured)[-1].echo.state == "no_echo", 60)


@pytest.mark.parametrize("loss_db", [6, 20])
def test_headphones_that_are_pulled_out_start_no_loop(loss_db: float) -> None:
    room = EchoRoom(loss_db, 100)
    room.echo_gain = 0.0
    with talking(room) as driver:
        for reply in (1, 2):
            ask(driver, room, lambda reply=reply: replies_heard(driver) >= reply)  # type: ignore[misc]
        driver.until(lambda: driver.of(EchoMeasured)[-1].echo.state == "no_echo")
        room.echo_gain = 1.0
        for reply in (3, 4):
            ask(driver, room, lambda reply=reply: replies_heard(driver) >= reply or interruptions(driver) > 1)  # type: ignore[misc]
    assert interruptions(driver) <= 1
    assert len(driver.of(TurnOpened)) <= 5
    assert driver.of(EchoMeasured)[-1].echo.state == "cancelling"


def test_the_obstacle_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(echo_libraries.MODULES, "pywebrtc", "no_such_package")
    room = EchoRoom(60, 100)
    with talking(room) as driver:
        ask(driver, room, lambda: replies_heard(driver) == 1)
        driver.session.send(ApplySettings(SessionSettings(audio_processing=AudioProcessing("on"))))
        ask(driver, room, lambda: replies_heard(driver) == 2)
    assert len(driver.of(ErrorRaised)) == 1
    assert "pywebrtc-audio" in driver.of(ErrorRaised)[0].problem.what_is_wrong
    assert driver.of(ErrorRaised)[0].problem.what_to_do


def test_the_echo_is_cancelled_however_often_the_loudspeaker_was_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reply is heard while the microphone is closed, so that nobody reads what was played. Then the user
    talks: after Start, after another device, after a loss, after Stop, and after a reply during a stop."""
    clock, room = VirtualClock(), Room(12, 100)
    monkeypatch.setattr(device_streams, "time", SimpleNamespace(perf_counter_ns=clock.now_ns))
    loudspeaker = Loudspeaker(room)

    def hear_reply(driver: Driver) -> None:
        heard = replies_heard(driver)
        driver.session.send(AskText("Who are you?"))
        driver.until(lambda: replies_heard(driver) > heard, 60)

    def await_state(driver: Driver, state: SessionState) -> None:
        driver.until(lambda: driver.of(StateChanged)[-1].state is state)

    def talk(driver: Driver) -> None:
        await_state(driver, SessionState.LISTENING)
        for _ in range(2):
            heard = replies_heard(driver)
            ask(driver, room, lambda heard=heard: replies_heard(driver) > heard or interruptions(driver) > 0)  # type: ignore[misc]
            assert interruptions(driver) == 0
            assert not loudspeaker.played.ring.available > DEVICE_RATE_HZ

    with talking(room, speaker=loudspeaker, clock=clock) as driver:
        hear_reply(driver)
        assert loudspeaker.played.ring.free < BLOCK_FRAMES
        driver.session.send(Start())
        talk(driver)
        driver.session.send(SetDevices(output="another"))
        driver.until(lambda: driver.of(DevicesChanged)[-1].output == "another")
        talk(driver)
        notices, loudspeaker.goes = len(driver.of(DeviceNoticed)), True
        # The microphone is opened after the loudspeaker: what is said before is not heard.
        driver.until(lambda: len(driver.of(DeviceNoticed)) > notices)
        talk(driver)
        for has_reply in (False, True):
            driver.session.send(Stop())
            await_state(driver, SessionState.STOPPED)
            if has_reply:
                hear_reply(driver)
            driver.session.send(Start())
            talk(driver)
        driver.until(
            lambda: bool(driver.of(EchoMeasured)) and driver.of(EchoMeasured)[-1].echo.erle_db is not None
        )
    assert all("does not say when" not in str(event.problem) for event in driver.of(ErrorRaised))
    assert driver.of(EchoMeasured)[-1].echo.state == "cancelling"
