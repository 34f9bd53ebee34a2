"""A recorded conversation is replayed: the same build does the same, other differences are said."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.audio.wav import read_wav, write_wav
from app.session.commands import AskText, NewConversation, RetryTurn, Start
from app.session.conversation_folder import list_conversations
from app.session.events import (
    PlaybackFinished,
    SampleFinished,
    SessionState,
    StateChanged,
)
from app.session.headless import run_file
from app.session.replay import RecordedMicrophone, ReplayError, replay
from app.session.session_settings import Recording, SessionSettings
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.types import Modality
from tests.doubles.scripted_engine import LoudnessVad, Script, ScriptedEngine
from tests.tools.session_driver import running, silence, speech, write_question

QUESTION = Path(__file__).parents[2] / "data" / "speech" / "question.wav"


@pytest.mark.slow
def test_a_file_that_was_answered_is_answered_alike(random_bundle: Path, tmp_path: Path) -> None:
    pcm, rate = read_wav(QUESTION)
    pause = np.zeros(rate, dtype=np.float32)
    write_wav(tmp_path / "two.wav", np.concatenate([pause, pcm, pause, pcm]), rate)

    def load() -> Engine:
        return Engine.load(Bundle.open(random_bundle))

    run_file(load, wav_in=tmp_path / "two.wav", record=tmp_path / "kept")
    result = replay(tmp_path / "kept", load)
    assert result["differences"] == []
    assert result == {"folder": str(tmp_path / "kept"), "turns": 2, "is_same": True, "differences": []}


@pytest.mark.slow
def test_all_waits_of_a_file_are_left_out(tmp_path: Path) -> None:
    parts = [silence(0.5), speech(0.6), silence(1.0), speech(0.9), silence(1.0), speech(1.3), silence(0.5)]
    three = write_question(tmp_path / "three.wav", *parts)
    kept, vad = tmp_path / "kept", LoudnessVad()
    run_file(lambda: ScriptedEngine(Script(chunks=2)), wav_in=three, record=kept, vad=vad)
    result = replay(kept, lambda: ScriptedEngine(Script(chunks=2)), vad=vad)
    assert result["differences"] == []
    assert result["turns"] == 3


def hold(tmp_path: Path, script: Script) -> Path:
    """A conversation over a microphone, with a typed question in between."""
    parts = [silence(0.5), speech(1.0), silence(3.0), speech(0.8), silence(2.0)]
    microphone = RecordedMicrophone(write_question(tmp_path / "q.wav", *parts), deque())
    settings = SessionSettings(recording=Recording(tmp_path, name="kept"))
    with running(ScriptedEngine(script), settings, microphone=microphone) as driver:
        microphone.send = driver.session.send
        driver.session.send(Start())
        driver.await_event(PlaybackFinished, 2)
        driver.session.send(AskText("and typed?"))
        driver.await_event(PlaybackFinished, 3)
    return tmp_path / "kept"


@pytest.mark.slow
def test_a_microphone_is_replayed_with_the_questions_that_were_typed(tmp_path: Path) -> None:
    kept = hold(tmp_path, Script(chunks=2))
    result = replay(kept, lambda: ScriptedEngine(Script(chunks=2)), vad=LoudnessVad())
    assert result["differences"] == []
    assert result["turns"] == 3


@pytest.mark.slow
def test_a_conversation_that_began_long_after_the_microphone_was_opened_is_the_same(tmp_path: Path) -> None:
    """Its turns have other numbers, and the Vad was in the middle of a frame when it began."""
    parts = [silence(0.5), speech(1.0), silence(3.0), speech(0.8), silence(3.0), speech(1.1), silence(2.0)]
    microphone = RecordedMicrophone(write_question(tmp_path / "q.wav", *parts), deque())
    settings = SessionSettings(recording=Recording(tmp_path / "kept"))
    with running(ScriptedEngine(Script(chunks=1)), settings, microphone=microphone) as driver:
        microphone.send = driver.session.send
        driver.session.send(Start())
        driver.await_event(PlaybackFinished)
        driver.session.send(NewConversation())
        driver.await_event(PlaybackFinished, 3)
        driver.session.send(AskText("and typed?"))
        driver.await_event(PlaybackFinished, 4)
        clock = driver.engine.clock
        assert clock is not None
        later_ns = clock.now_ns() + 1_000_000_000
        driver.until(lambda: clock.now_ns() > later_ns)
        driver.session.send(RetryTurn(4, "text", "and typed?"))
        driver.await_event(PlaybackFinished, 5)
    (second,) = [found for found in list_conversations(tmp_path / "kept") if not found.is_ended]
    result = replay(second.folder, lambda: ScriptedEngine(Script(chunks=1)), vad=LoudnessVad())
    assert result["differences"] == []
    assert result["turns"] == 4


@pytest.mark.slow
def test_what_is_different_is_said(tmp_path: Path) -> None:
    kept = hold(tmp_path, Script(chunks=2))

    class Deafer(LoudnessVad):
        def probability(self, frame: Any) -> float:
            return super().probability(0.07 * frame)

    result = replay(kept, lambda: ScriptedEngine(Script(chunks=1)), vad=Deafer())
    assert not result["is_same"]
    found = {
        (entry["turn"], entry["what"]): (entry["recorded"], entry["replayed"])
        for entry in result["differences"]
    }
    # It hears neither question, so the typed one is the first turn.
    assert found[1, "TurnOpened.source"] == ("voice", "text")
    assert found[1, "ReplyFinished.text"] == ("word0 word1 ", "word0 ")
    assert found[3, "TurnOpened.source"] == ("text", None)


def test_what_cannot_be_replayed_is_explained(tmp_path: Path) -> None:
    settings = SessionSettings(recording=Recording(tmp_path, name="kept"), reply=Modality.TEXT)
    with running(ScriptedEngine(), settings) as driver:
        driver.session.send(AskText("hello"))
        driver.await_event(StateChanged, 3)
        driver.until(lambda: StateChanged(SessionState.STOPPED) in driver.events[-3:])
    events = tmp_path / "kept" / "events.jsonl"
    events.write_text("")
    with pytest.raises(ReplayError, match="neither"):
        replay(tmp_path / "kept", ScriptedEngine)
    assert not driver.of(SampleFinished)
