"""Another engine takes the place of the present one while the session runs."""

from __future__ import annotations

import json
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from app.session.commands import AskText, LoadEngine, NewConversation
from app.session.conversation_folder import list_conversations
from app.session.events import (
    EngineLoading,
    EngineReady,
    ErrorRaised,
    PlaybackFinished,
    SessionState,
    StateChanged,
    Timing,
    TurnCancelled,
)
from app.session.session_settings import Recording, SessionSettings
from app.session.transcript import how_to_continue
from engine_runtime.errors import MossVoiceError, Problem
from tests.doubles.scripted_engine import Script, ScriptedEngine
from tests.tools.session_driver import Driver, running

pytestmark = pytest.mark.slow


def other(driver: Driver, name: str = "scripted", script: Script | None = None) -> ScriptedEngine:
    """An engine of this model on the clock of the session."""
    engine = ScriptedEngine(script, name)
    engine.clock = driver.engine.clock
    return engine


def load(driver: Driver, engine: AbstractContextManager[Any]) -> None:
    driver.session.send(LoadEngine(lambda: engine))


def fail() -> NoReturn:
    raise MossVoiceError("The bundle is broken.", "Get it again.")


def test_the_same_model_continues_the_conversation() -> None:
    with running(ScriptedEngine()) as driver:
        driver.session.send(AskText("one"))
        driver.await_event(PlaybackFinished)
        second = other(driver)
        load(driver, second)
        ready = driver.await_event(EngineReady, 2)
        assert driver.engine.is_closed
        assert driver.engine.ended == [1]
        assert ready.keeps_history
        assert [exchange.turn_id for exchange in second.exchanges] == [1]
        driver.session.send(AskText("two"))
        driver.await_event(PlaybackFinished, 2)
        assert second.names_of(2) == ["open", "push_text", "commit"]
        states = [event.state for event in driver.of(StateChanged)]
        assert states.count(SessionState.LOADING) == 2
        turns = {event.event.turn_id for event in driver.of(Timing) if event.event.name == "vocoder"}
        assert turns == {1, 2}


def test_another_model_begins_a_new_conversation() -> None:
    with running(ScriptedEngine()) as driver:
        driver.session.send(AskText("one"))
        driver.await_event(PlaybackFinished)
        stranger = other(driver)
        stranger.restore = lambda snapshot: fail()  # type: ignore[method-assign]
        load(driver, stranger)
        assert not driver.await_event(EngineReady, 2).keeps_history
        third = other(driver)
        driver.session.send(NewConversation())
        load(driver, third)
        assert driver.await_event(EngineReady, 3).keeps_history
        assert third.exchanges == []


def test_each_model_is_recorded_in_a_conversation_of_its_own(tmp_path: Path) -> None:
    settings = SessionSettings(hear_samples=False, recording=Recording(tmp_path, with_sound=False))
    with running(ScriptedEngine(), settings) as driver:
        driver.session.send(AskText("one"))
        driver.await_event(PlaybackFinished)
        load(driver, other(driver))  # the same model: the conversation goes on
        driver.await_event(EngineReady, 2)
        driver.session.send(AskText("two"))
        driver.await_event(PlaybackFinished, 2)
        stranger = other(driver, "stranger")
        stranger.restore = lambda snapshot: fail()  # type: ignore[method-assign]
        load(driver, stranger)
        driver.await_event(EngineReady, 3)
        driver.session.send(AskText("three"))
        driver.await_event(PlaybackFinished, 3)
    abouts = [json.loads((folder / "conversation.json").read_text()) for folder in tmp_path.iterdir()]
    found = {about["bundle"]: (about["turns"], about["is_ended"]) for about in abouts}
    assert found == {"scripted": (2, True), "stranger": (1, False)}


def test_a_reply_in_progress_is_cancelled() -> None:
    gate = threading.Event()
    with running(ScriptedEngine(Script(gate=gate))) as driver:
        driver.session.send(AskText("one"))
        driver.until(lambda: StateChanged(SessionState.THINKING) in driver.events)
        load(driver, other(driver))
        assert driver.await_event(TurnCancelled).reason == "replaced"
        driver.await_event(EngineReady, 2)
        driver.session.send(AskText("two"))
        driver.await_event(PlaybackFinished)


def test_after_a_failure_another_engine_can_be_loaded() -> None:
    with running(ScriptedEngine()) as driver:
        driver.session.send(AskText("one"))
        driver.await_event(PlaybackFinished)
        driver.session.send(LoadEngine(fail))
        assert driver.await_event(ErrorRaised) == ErrorRaised(
            Problem("The bundle is broken.", "Get it again."), is_fatal=True
        )
        driver.session.send(AskText("anyone?"))
        driver.await_event(ErrorRaised, 2)
        assert driver.of(StateChanged)[-1].state is SessionState.ERROR
        last = other(driver)
        load(driver, last)
        assert driver.await_event(EngineReady, 2).keeps_history
        assert [exchange.turn_id for exchange in last.exchanges] == [1]
        driver.session.send(AskText("two"))
        driver.await_event(PlaybackFinished, 2)


def test_of_several_requests_only_the_last_engine_is_reported() -> None:
    gate = threading.Event()

    with running(ScriptedEngine()) as driver:
        driver.await_event(EngineReady)
        first, last = other(driver, "first"), other(driver, "last")

        def wait() -> ScriptedEngine:
            gate.wait(30)
            return first

        driver.session.send(LoadEngine(wait))
        load(driver, last)
        driver.session.send(AskText("which one?"))
        driver.until(lambda: StateChanged(SessionState.LOADING) in driver.events)
        gate.set()
        driver.await_event(PlaybackFinished)
        assert [event.bundle for event in driver.of(EngineReady)] == ["scripted", "last"]
        assert first.is_closed
        assert "commit" in last.names_of(1)


def test_the_progress_of_a_factory_is_reported() -> None:
    with running(ScriptedEngine()) as driver:
        driver.await_event(EngineReady)
        engine = other(driver)

        def report() -> ScriptedEngine:
            for share in (0.501, 0.503, 1.0, 1.0):
                driver.session.note_loading(share)
            return engine

        driver.session.send(LoadEngine(report))
        driver.await_event(EngineReady, 2)
        assert driver.of(EngineLoading) == [EngineLoading(0.5), EngineLoading(1.0)]


def test_a_conversation_that_no_engine_could_continue_does_not_stop_the_recording(tmp_path: Path) -> None:
    settings = SessionSettings(recording=Recording(tmp_path, with_sound=False))
    with running(ScriptedEngine(Script(chunks=1)), settings) as driver:
        driver.session.send(AskText("one"))
        driver.await_event(PlaybackFinished)
    (before,) = list_conversations(tmp_path)
    begun = threading.Event()

    def fail_later() -> ScriptedEngine:
        begun.wait(30)
        raise MossVoiceError("The engine is gone.", "Get it again.")

    with running(ScriptedEngine(Script(chunks=1)), settings) as driver:
        driver.session.send(LoadEngine(fail_later))
        driver.session.send(how_to_continue(before.folder))
        begun.set()
        assert driver.await_event(ErrorRaised).is_fatal
        load(driver, other(driver))
        driver.await_event(EngineReady)
        driver.session.send(AskText("two"))
        driver.await_event(PlaybackFinished)
    assert len(list_conversations(tmp_path)) == 2
