"""A whole session on a virtual clock whose turns are opened by the button of push-to-talk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.audio.wav_streams import WavSpeaker
from app.dialog.turn_taking_settings import TurnTakingSettings
from app.session.commands import (
    HoldToTalk,
    Mute,
    PlaySample,
    Start,
)
from app.session.events import (
    ErrorRaised,
    PlaybackFinished,
    PlaybackStarted,
    ReplyCut,
    SampleFinished,
    Timing,
    TurnCancelled,
    TurnCommitted,
    TurnOpened,
)
from app.session.session_settings import SessionSettings
from engine_runtime.types import Pcm
from tests.doubles.scripted_engine import Script, ScriptedEngine
from tests.doubles.scripted_microphone import ScriptedMicrophone
from tests.tools.session_driver import Driver, running, silence, speech, write_question

pytestmark = pytest.mark.slow

PUSH = SessionSettings(hear_samples=False, turn_taking=TurnTakingSettings(input_mode="push"))
NEVER = SessionSettings(hear_samples=False, turn_taking=TurnTakingSettings(input_mode="push", barge_in=False))


def hold(driver: Driver, microphone: ScriptedMicrophone, *presses: tuple[float, float]) -> None:
    """Start to listen, and press from the first to the second time of each pair (in seconds)."""
    for press in presses:
        for at_s, on in zip(press, (True, False), strict=True):
            microphone.acts.append((at_s, lambda on=on: driver.session.send(HoldToTalk(on))))  # type: ignore[misc]
    driver.session.send(Start())


def endpointing(driver: Driver) -> list[tuple[float, object]]:
    """(milliseconds, reason) of each commit."""
    events = [event.event for event in driver.of(Timing) if event.event.name == "endpointing"]
    return [(event.duration_ms, event.attributes["reason"]) for event in events]


def test_only_what_is_said_while_the_button_is_down_is_a_turn() -> None:
    said = (silence(0.5), speech(1.0), silence(1.5), speech(0.6), silence(2.0), speech(0.6), silence(0.3))
    microphone = ScriptedMicrophone(*said)
    engine = ScriptedEngine()
    with running(engine, PUSH, microphone=microphone) as driver:
        hold(driver, microphone, (2.5, 6.0), (9.0, 9.5))
        driver.await_event(TurnCancelled)
        assert [event.reason for event in driver.of(TurnCancelled)] == ["nothing_heard"]
        driver.await_event(PlaybackFinished)
        assert [event.source for event in driver.of(TurnOpened)] == ["voice", "voice"]
        (committed,) = driver.of(TurnCommitted)
        assert engine.names_of(2) == ["open", "cancel"]
    assert committed.start_s == pytest.approx(3.0, abs=0.04)
    assert committed.seconds == pytest.approx(6.0 - 3.0, abs=0.08)


def test_a_press_without_speech_is_dropped_and_speech_without_a_press_is_not_heard() -> None:
    microphone = ScriptedMicrophone(silence(0.5), speech(1.0), silence(0.5))
    engine = ScriptedEngine()
    with running(engine, PUSH, microphone=microphone) as driver:
        hold(driver, microphone, (3.0, 4.0))
        assert driver.await_event(TurnCancelled).reason == "nothing_heard"
        assert len(driver.of(TurnOpened)) == 1
        assert driver.of(TurnCommitted) == []
        driver.until(lambda: ("cancel", 1) in engine.calls)
    assert engine.names_of(1) == ["open", "cancel"]


def test_the_release_commits_at_once_with_all_that_was_said() -> None:
    microphone = ScriptedMicrophone(silence(1.0), speech(1.0), latency_s=0.1)
    engine = ScriptedEngine()
    with running(engine, PUSH, microphone=microphone) as driver:
        hold(driver, microphone, (0.9, 2.0))
        committed = driver.await_event(TurnCommitted)
        driver.await_event(PlaybackStarted)
        ((duration_ms, reason),) = endpointing(driver)
    assert committed.seconds == pytest.approx(1.0, abs=0.04)
    assert reason == "released"
    # The device's latency, and the frame in which the button came up.
    assert duration_ms == pytest.approx(100 + 16, abs=48)
    heard = np.concatenate(engine.turns[0].heard)
    loud = np.flatnonzero(np.abs(heard) > 0.1)
    assert loud[0] / 16_000 == pytest.approx(0.32, abs=0.04)
    assert (loud[-1] - loud[0]) / 16_000 == pytest.approx(1.0, abs=0.04)
    assert (len(heard) - loud[-1]) / 16_000 == pytest.approx(0.096, abs=0.04)


@pytest.mark.parametrize("settings", [PUSH, NEVER])
def test_a_press_interrupts_a_reply_that_voice_does_not(settings: SessionSettings) -> None:
    said = (silence(0.5), speech(0.5), silence(1.5), speech(1.0), silence(2.0), speech(0.5))
    microphone = ScriptedMicrophone(*said)
    heard: list[Pcm] = []
    engine = ScriptedEngine(Script(chunks=20))
    with running(engine, settings, microphone=microphone, speaker=WavSpeaker(48_000, heard.append)) as driver:
        hold(driver, microphone, (0.4, 1.1), (5.0, 6.1))
        cut = driver.await_event(ReplyCut)
        driver.await_event(PlaybackStarted, 2)
        assert cut.reason == "barge_in"
        assert cut.heard_s == pytest.approx(5.0 - 1.2, abs=0.2)
        assert [event.turn_id for event in driver.of(TurnCommitted)] == [1, 2]
        assert driver.of(ErrorRaised) == []


def test_a_turn_that_voice_has_opened_is_committed_by_the_release() -> None:
    microphone = ScriptedMicrophone(silence(0.5), speech(0.6), silence(3.0))
    both = SessionSettings(hear_samples=False, turn_taking=TurnTakingSettings(input_mode="both"))
    with running(ScriptedEngine(), both, microphone=microphone) as driver:
        hold(driver, microphone, (0.9, 2.0))
        driver.await_event(PlaybackStarted)
        ((duration_ms, reason),) = endpointing(driver)
        assert len(driver.of(TurnOpened)) == 1
    assert reason == "released"
    assert duration_ms == pytest.approx(900, abs=60)


def test_a_sample_is_answered_although_its_user_presses_nothing(tmp_path: Path) -> None:
    question = write_question(tmp_path / "question.wav", silence(0.8), speech(1.0), silence(0.3))
    with running(ScriptedEngine(), PUSH) as driver:
        driver.session.send(PlaySample(question))
        driver.await_event(SampleFinished)
        assert len(driver.of(PlaybackFinished)) == 1


def test_a_press_ends_a_sample(tmp_path: Path) -> None:
    question = write_question(tmp_path / "question.wav", silence(0.2), speech(20.0))
    microphone = ScriptedMicrophone(silence(2.0), speech(1.0))
    with running(ScriptedEngine(), PUSH, microphone=microphone) as driver:
        microphone.acts = [(0.5, lambda: driver.session.send(PlaySample(question)))]
        hold(driver, microphone, (1.5, 3.2))
        driver.await_event(PlaybackFinished)
        assert [event.turn_id for event in driver.of(TurnCommitted)] == [2]
        assert [(event.turn_id, event.reason) for event in driver.of(TurnCancelled)] == [(1, "replaced")]


def test_a_microphone_that_cannot_be_heard_is_reported() -> None:
    microphone = ScriptedMicrophone(speech(2.0))
    with running(ScriptedEngine(), PUSH, microphone=microphone) as driver:
        send = driver.session.send
        send(HoldToTalk(True))
        send(HoldToTalk(False))
        driver.await_event(ErrorRaised)
        send(Mute(True))
        send(Start())
        send(HoldToTalk(True))
        driver.await_event(ErrorRaised, 2)
        assert [error.problem.what_is_wrong for error in driver.of(ErrorRaised)][
            -1
        ] == "The microphone is muted."
        assert all(error.problem.what_to_do for error in driver.of(ErrorRaised))
        assert driver.of(TurnOpened) == []


@pytest.mark.parametrize("input_mode", ["voice", "both"])
def test_do_not_interrupt_is_honoured(input_mode: str) -> None:
    """Speech over the reply neither cuts nor dips it, and is not answered."""
    settings = SessionSettings(
        hear_samples=False,
        turn_taking=TurnTakingSettings(input_mode=input_mode, barge_in=False),  # type: ignore[arg-type]
    )
    microphone = ScriptedMicrophone(silence(0.5), speech(0.6), silence(2.0), speech(2.0))
    heard: list[Pcm] = []
    with running(
        ScriptedEngine(Script(chunks=15)),
        settings,
        microphone=microphone,
        speaker=WavSpeaker(48_000, heard.append),
    ) as driver:
        driver.session.send(Start())
        driver.await_event(PlaybackFinished)
        assert driver.of(TurnCancelled) == []
        assert len(driver.of(TurnOpened)) == 1
    played = np.concatenate(heard)
    loud = np.flatnonzero(np.abs(played) > 0.4)
    assert (loud[-1] - loud[0]) / 48_000 == pytest.approx(15 * 0.4, abs=0.01)
    assert np.diff(loud).max() < 48_000 / 440  # at no period of the tone is it quieter
