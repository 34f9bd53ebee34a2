"""What a session writes to the log."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from app.audio.echo_cancellation import EchoMeasurement
from app.session.commands import AskText, PlaySample
from app.session.event_log import EventLog
from app.session.events import (
    Counters,
    DevicesChanged,
    EchoMeasured,
    EngineReady,
    ErrorRaised,
    Event,
    Levels,
    PlaybackFinished,
    ReplyCut,
    ReplyFinished,
    SampleStarted,
    SessionState,
    StateChanged,
    Timing,
    TurnCancelled,
    TurnCommitted,
    TurnExtended,
    TurnOpened,
)
from engine_runtime.errors import Problem
from engine_runtime.timing import TimingEvent
from engine_runtime.types import Modality
from tests.doubles.scripted_engine import ScriptedEngine
from tests.tools.session_driver import running, silence, speech, write_question

LOGGER = "app.session.event_log"


def lines(caplog: pytest.LogCaptureFixture, *events: Event, level: int = logging.INFO) -> list[str]:
    log = EventLog()
    with caplog.at_level(level, LOGGER):
        for event in events:
            log.note(event)
    return [record.message for record in caplog.records if record.name == LOGGER]


def timing(name: str, ms: float, turn_id: int = 1, **attributes: float | int | str) -> Timing:
    return Timing(TimingEvent(name, turn_id, 0, int(ms * 1e6), "dialog", attributes))


def finished(turn_id: int = 1, seconds: float = 2.5) -> ReplyFinished:
    return ReplyFinished(turn_id, Modality.SPEECH, seconds, "the sky is blue", 20, 31, "stop")


def test_a_turn_is_a_line_at_its_commit_and_one_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    said = lines(
        caplog,
        TurnOpened(1, "voice"),
        TurnCommitted(1, 1.7),
        TurnExtended(1),
        TurnCommitted(1, 2.9),
        timing("endpointing", 250),
        timing("first_audio", 180),
        timing("step", 5),
        timing("first_audio", 99, turn_id=7),
        finished(),
        timing("voice_to_voice", 478.6),
        PlaybackFinished(1),
        PlaybackFinished(1),  # of its repetition
    )
    assert said == [
        "turn 1 committed: 1.70 s of speech",
        "turn 1 continues",
        "turn 1 committed: 2.90 s of speech",
        "turn 1 finished: 2.50 s of reply, stop, endpointing 250 ms, TTFA 180 ms, voice-to-voice 479 ms",
    ]


def test_a_written_reply_has_no_playback_to_wait_for(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, finished(seconds=0.0)) == ["turn 1 finished: 0.00 s of reply, stop"]


def test_cuts_and_cancels(caplog: pytest.LogCaptureFixture) -> None:
    said = lines(
        caplog,
        finished(),
        ReplyCut(1, "output_lost", Modality.SPEECH, "the sky", " is blue", 0.75, 2.5, 20, 10),
        TurnCancelled(1, "output_lost"),
        PlaybackFinished(1),  # played again
        TurnCancelled(2, "too_short"),  # noise: DEBUG
    )
    assert said == ["turn 1 cut: output_lost, 0.75 of 2.50 s heard", "turn 1 cancelled: output_lost"]


def test_devices_are_logged_when_they_change(caplog: pytest.LogCaptureFixture) -> None:
    names = (("Headset", "Camera"), ("Headset",))
    said = lines(
        caplog,
        DevicesChanged(*names, "", ""),
        DevicesChanged(*names, "Headset", "Headset"),
        DevicesChanged(*names, "Headset", "Headset"),
        DevicesChanged(*names, "Camera", ""),
    )
    assert said == ["microphone: Headset; loudspeaker: Headset", "microphone: Camera; loudspeaker: closed"]


def test_engine_echo_counters_and_samples(caplog: pytest.LogCaptureFixture) -> None:
    said = lines(
        caplog,
        EngineReady("nano", 2.41, 16_000, 24_000),
        Counters(0, 0),
        Counters(2, 480),
        Counters(2, 480),
        EchoMeasured(EchoMeasurement("cancelling", 12.0, 30.0, 85.0)),
        EchoMeasured(EchoMeasurement("cancelling", 12.5, 30.0, 85.0)),
        SampleStarted(Path("somewhere/01-hello.wav"), 1.25),
        Levels(-20.0, -30.0, 0.9),
        StateChanged(SessionState.LISTENING),
    )
    assert said == [
        "engine ready in 2.4 s: nano, 16000 Hz in, 24000 Hz out",
        "under-runs 2, dropped input 480 samples",
        "echo: cancelling",
        "sample 01-hello.wav, 1.2 s",
    ]


def test_errors_have_their_level_and_remedy(caplog: pytest.LogCaptureFixture) -> None:
    said = lines(
        caplog,
        ErrorRaised(Problem("The device was lost.", "Check its cable."), is_about_sound=True),
        ErrorRaised(Problem("It failed.", "Ask again."), turn_id=3),
        ErrorRaised(Problem("The bundle is damaged.", "Copy it again."), is_fatal=True),
    )
    assert said == [
        "The device was lost. Check its cable.",
        "turn 3: It failed. Ask again.",
        "The bundle is damaged. Copy it again.",
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "ERROR"]


def test_decisions_and_states_are_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    decision = timing("decision", 0, kind="confirm", at_s=4.25, reason="likely")
    assert lines(caplog, decision) == []
    said = lines(
        caplog, decision, StateChanged(SessionState.HEARING), TurnOpened(4, "voice"), level=logging.DEBUG
    )
    assert said == ["turn 1: confirm: at_s 4.25, reason likely", "state: hearing", "turn 4 opened: voice"]


def test_a_conversation_is_in_the_log_and_what_was_said_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    question = write_question(tmp_path / "question.wav", silence(0.5), speech(1.0), silence(0.3))
    with caplog.at_level(logging.DEBUG), running(ScriptedEngine()) as driver:
        driver.session.send(AskText("a secret question"))
        driver.await_event(PlaybackFinished)
        driver.session.send(PlaySample(question))
        driver.await_event(PlaybackFinished, 2)
        words = driver.of(ReplyFinished)[0].text
    said = [record.message for record in caplog.records]
    assert "turn 1 committed: 0.00 s of speech" in said
    assert [line.partition(":")[0] for line in said if "finished" in line] == [
        "turn 1 finished",
        "turn 2 finished",
    ]
    assert any(line.startswith("turn 2: confirm: ") for line in said)
    assert words
    assert not any("secret" in line or words in line for line in said)
