"""Turns that are deleted or asked again, and conversations that are continued after a restart."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from app.session.commands import (
    AskText,
    ContinueConversation,
    DeleteTurn,
    NewConversation,
    RetryTurn,
)
from app.session.conversation_folder import entry_of, list_conversations, read_events, read_history
from app.session.events import (
    ConversationContinued,
    ErrorRaised,
    PlaybackFinished,
    PlaybackStarted,
    ReplyCut,
    ReplyFinished,
    TurnCancelled,
    TurnOpened,
    TurnsRemoved,
)
from app.session.session_settings import Recording, SessionSettings
from app.session.transcript import how_to_continue, read_transcript
from engine_runtime.types import Modality
from tests.doubles.scripted_engine import Script, ScriptedEngine
from tests.tools.session_driver import Driver, running

TEXT = SessionSettings(reply=Modality.TEXT)


def ask(driver: Driver, *questions: str) -> None:
    for question in questions:
        driver.session.send(AskText(question))
        driver.await_event(ReplyFinished, len(driver.of(ReplyFinished)) + 1)


def questions_of(folder: Path) -> list[str]:
    return [known.event.text for known in read_transcript(folder) if isinstance(known.event, TurnOpened)]


@pytest.mark.slow
def test_a_deleted_turn_leaves_history_and_transcript() -> None:
    with running(ScriptedEngine(), TEXT) as driver:
        ask(driver, "one", "two", "three")
        driver.session.send(DeleteTurn(2))
        assert driver.await_event(TurnsRemoved).turn_ids == (2,)
        driver.until(lambda: [known.turn_id for known in driver.engine.exchanges] == [1, 3])
        assert [turn.turn_id for turn in driver.turns.transcript.turns] == [1, 3]
        ask(driver, "four")
    assert [known.turn_id for known in driver.engine.exchanges] == [1, 3, 4]


@pytest.mark.slow
def test_deleting_the_reply_that_is_spoken_stops_it() -> None:
    with running(ScriptedEngine(Script(chunk_s=5.0))) as driver:
        driver.session.send(AskText("one"))
        driver.await_event(PlaybackStarted)
        driver.session.send(DeleteTurn(1))
        driver.await_event(TurnsRemoved)
        driver.until(lambda: not driver.engine.exchanges)
        assert driver.of(TurnCancelled)


def test_a_question_is_asked_again_in_its_place() -> None:
    with running(ScriptedEngine(), TEXT) as driver:
        ask(driver, "one", "two", "three")
        driver.session.send(RetryTurn(2, "text", "two"))
        again = driver.await_event(TurnOpened, 4)
        driver.await_event(ReplyFinished, 4)
    assert again == TurnOpened(4, "text", "two")
    assert driver.await_event(TurnsRemoved).turn_ids == (2, 3)
    assert [known.turn_id for known in driver.engine.exchanges] == [1, 4]
    assert "push_question" in driver.engine.names_of(4)
    assert driver.of(ReplyFinished)[-1].user_codes == 7


@pytest.mark.slow
def test_a_question_that_is_not_known_any_more_is_an_error() -> None:
    with running(ScriptedEngine(), TEXT) as driver:
        ask(driver, "one")
        driver.session.send(RetryTurn(9, "voice"))
        assert "no longer remembered" in driver.await_event(ErrorRaised).problem.what_is_wrong
        ask(driver, "two")


@pytest.mark.slow
def test_a_conversation_survives_a_restart(tmp_path: Path) -> None:
    kept = SessionSettings(recording=Recording(tmp_path))
    with running(ScriptedEngine(Script(chunks=1)), kept) as driver:
        ask(driver, "one", "two")
        driver.session.send(DeleteTurn(1))
        driver.await_event(PlaybackFinished)
    (found,) = list_conversations(tmp_path)
    assert [entry["turn_id"] for entry in read_history(found.folder)["exchanges"]] == [2]
    assert questions_of(found.folder) == ["two"]
    first, _ = soundfile.read(found.folder / "conversation.wav")
    with running(ScriptedEngine(Script(chunks=1)), kept) as driver:
        driver.session.send(how_to_continue(found.folder))
        assert driver.await_event(ConversationContinued).folder == found.folder
        ask(driver, "three")
        driver.await_event(PlaybackFinished)
        assert driver.of(TurnOpened)[0].turn_id == 3
        assert [known.turn_id for known in driver.engine.exchanges] == [2, 3]
    (found,) = list_conversations(tmp_path)
    assert (found.turns, found.first_words) == (2, "two")
    assert questions_of(found.folder) == ["two", "three"]
    both, _ = soundfile.read(found.folder / "conversation.wav")
    assert np.array_equal(both[: len(first)], first)
    starts = [known.t for known in read_transcript(found.folder) if isinstance(known.event, TurnOpened)]
    assert starts == sorted(starts)
    assert both[round(starts[1] * 48_000) :, 1].any()


@pytest.mark.slow
def test_another_model_cannot_continue_it(tmp_path: Path) -> None:
    kept = SessionSettings(recording=Recording(tmp_path), reply=Modality.TEXT)
    with running(ScriptedEngine(), kept) as driver:
        ask(driver, "one")
    (found,) = list_conversations(tmp_path)
    history = read_history(found.folder) | {"bundle": "other"}
    before = (found.folder / "events.jsonl").read_text()
    with running(ScriptedEngine(), kept) as driver:
        driver.session.send(ContinueConversation(found.folder, history, 1, 1.0))
        assert "another bundle" in driver.await_event(ErrorRaised).problem.what_is_wrong
        ask(driver, "two")
    assert (found.folder / "events.jsonl").read_text() == before
    assert len(list_conversations(tmp_path)) == 2


@pytest.mark.slow
def test_what_was_heard_of_the_last_reply_is_kept_when_the_program_ends(tmp_path: Path) -> None:
    kept = SessionSettings(recording=Recording(tmp_path))
    with running(ScriptedEngine(Script(chunk_s=20.0)), kept) as driver:
        driver.session.send(AskText("one"))
        driver.await_event(PlaybackStarted)
    (found,) = list_conversations(tmp_path)
    entries = [known.event for known in read_transcript(found.folder)]
    assert any(isinstance(event, ReplyCut) and event.reason == "stopped" for event in entries)


@pytest.mark.slow
def test_a_line_that_was_cut_off_does_not_take_the_next_one_with_it(tmp_path: Path) -> None:
    kept = SessionSettings(recording=Recording(tmp_path), reply=Modality.TEXT)
    with running(ScriptedEngine(), kept) as driver:
        ask(driver, "one", "two")
    (found,) = list_conversations(tmp_path)
    with (found.folder / "events.jsonl").open("ab") as events:
        events.write(b'{"t": 5.0, "event": "ReplyTextDelta", "tu')
    with running(ScriptedEngine(), kept) as driver:
        driver.session.send(how_to_continue(found.folder))
        driver.await_event(ConversationContinued)
        ask(driver, "three")
    first = (found.folder / "events.jsonl").read_bytes().splitlines()
    assert sum(entry_of(line) is None for line in first) == 1
    assert questions_of(found.folder) == ["one", "two", "three"]
    commands = [entry.get("text") for entry in read_events(found.folder) if "command" in entry]
    assert list(dict.fromkeys(commands)) == ["one", "two", "three"]


def test_a_damaged_line_is_left_out(tmp_path: Path) -> None:
    lines = [
        {"t": 0.0, "event": "TurnOpened", "turn_id": 1, "source": "text", "text": "one"},
        {"t": 0.5, "event": "TurnOpened", "turn_id": "x"},
        {"t": 0.6, "event": "ReplyFinished", "turn_id": 1, "modality": "smell"},
        {"t": 0.7, "event": "TurnExtended"},
    ]
    (tmp_path / "events.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (known,) = read_transcript(tmp_path)
    assert known.event == TurnOpened(1, "text", "one")


@pytest.mark.slow
def test_new_conversations_are_not_continued(tmp_path: Path) -> None:
    kept = SessionSettings(recording=Recording(tmp_path), reply=Modality.TEXT)
    with running(ScriptedEngine(), kept) as driver:
        ask(driver, "one")
        driver.session.send(NewConversation())
        ask(driver, "two")
    assert {found.first_words: found.is_ended for found in list_conversations(tmp_path)} == {
        "one": True, "two": False
    }  # fmt: skip
