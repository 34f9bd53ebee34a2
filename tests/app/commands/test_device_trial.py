"""The trial of the devices: when it asks, and what it makes of what the microphone heard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.audio.echo_cancellation import EchoMeasurement
from app.commands.device_trial import DeviceTrial
from app.session.commands import AskText, Command
from app.session.events import (
    Counters,
    DevicesChanged,
    EchoMeasured,
    ErrorRaised,
    Event,
    Levels,
    MicrophoneSilent,
    PlaybackFinished,
    ReplyCut,
    ReplyFinished,
    SessionState,
    StateChanged,
    Timing,
    TurnCommitted,
    TurnOpened,
)
from engine_runtime.errors import Problem
from engine_runtime.timing import TimingEvent
from engine_runtime.types import Modality

LISTENING, SPEAKING = StateChanged(SessionState.LISTENING), StateChanged(SessionState.SPEAKING)
OPEN = DevicesChanged(("mic",), ("speaker",), "mic", "speaker")


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Iterator[Clock]:
    return Clock()  # type: ignore[return-value]


def follow(trial: DeviceTrial, *events: Event) -> DeviceTrial:
    for event in events:
        trial.follow(event)
    return trial


def test_it_asks_in_turn_once_the_session_was_idle_for_a_second(clock: Clock) -> None:
    sent: list[Command] = []
    trial = follow(DeviceTrial(["one", "two"], clock), OPEN, LISTENING)
    trial.service(sent.append)
    assert sent == []
    clock.now_s = 1.0
    trial.service(sent.append)
    trial.service(sent.append)
    assert sent == [AskText("one")]
    follow(trial, SPEAKING)
    clock.now_s = 9.0
    trial.service(sent.append)
    assert len(sent) == 1
    for _ in range(2):
        follow(trial, LISTENING)
        clock.now_s += 1.0
        trial.service(sent.append)
    assert sent == [AskText("one"), AskText("two"), AskText("one")]


def test_it_waits_for_a_microphone_and_for_a_reply_that_pauses(clock: Clock) -> None:
    sent: list[Command] = []
    trial = follow(DeviceTrial(["one"], clock), LISTENING)
    clock.now_s = 5.0
    trial.service(sent.append)
    follow(trial, OPEN, StateChanged(SessionState.LISTENING, is_paused=True))
    clock.now_s = 10.0
    trial.service(sent.append)
    assert sent == []
    assert trial.document()["had_microphone"] is True


def test_it_does_not_wait_for_a_microphone_for_ever(clock: Clock) -> None:
    trial = follow(DeviceTrial(["one"], clock))
    clock.now_s = 100.0  # the model was loaded meanwhile
    assert not trial.has_given_up
    follow(trial, LISTENING)
    clock.now_s = 119.0
    assert not trial.has_given_up
    clock.now_s = 120.0
    assert trial.has_given_up
    assert trial.document()["had_microphone"] is False
    follow(trial, OPEN)
    assert not trial.has_given_up


def test_what_was_heard_is_counted() -> None:
    interrupt = TimingEvent("decision", 3, 0, 0, "dialog", {"kind": "interrupt"})
    trial = follow(
        DeviceTrial(["one"]),
        OPEN,
        Levels(-30.0, -20.0, 0.1),
        Levels(-50.0, -20.0, 0.1),
        TurnOpened(1, "text"),
        TurnCommitted(1, 0.0),
        ReplyFinished(1, Modality.SPEECH, 2.5, "", 0, 31, "stop"),
        PlaybackFinished(1),
        TurnOpened(2, "voice"),
        Timing(interrupt),
        ReplyCut(2, "barge_in", Modality.SPEECH, "", "", 0.5, 2.0, 0, 6),
        ReplyCut(2, "user", Modality.SPEECH, "", "", 0.5, 2.0, 0, 6),
        TurnCommitted(2, 0.6),
        Counters(1, 320),
        ErrorRaised(Problem("It was lost.", "Plug it in.")),
    )
    found = trial.document()
    assert (found["replies"], found["played"], found["spoken_s"]) == (1, 1, 2.5)
    assert (found["self_interruptions"], found["pauses"]) == (1, 1)
    assert (found["turns_opened"], found["turns_answered"]) == (1, 1)
    assert (found["underruns"], found["dropped_samples"]) == (1, 320)
    assert found["loudest_dbfs"] == -30.0
    assert found["errors"] == ["It was lost. Plug it in."]
    assert found["microphone_silent"] is False
    assert (found["echo"]["delay_ms"], found["delay_spread_ms"]) == (None, None)


def test_the_echo_and_its_spread() -> None:
    heard = [EchoMeasurement("cancelling", 12.0, 20.0, delay) for delay in (80.0, 81.5, 80.5)]
    trial = follow(
        DeviceTrial(["one"]), *map(EchoMeasured, heard), MicrophoneSilent(True), MicrophoneSilent(False)
    )
    found = trial.document()
    assert (found["echo"]["delay_ms"], found["delay_spread_ms"]) == (80.5, 1.5)
    assert found["microphone_silent"] is True
