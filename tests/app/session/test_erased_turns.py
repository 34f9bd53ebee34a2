"""Deleted turns are erased from the files: words, sound and tokens; a kill in between loses nothing else."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from app.audio.flac import pack, unpack
from app.audio.growing_wav import GrowingWav, silence
from app.export import ExportFile
from app.session import erased_turns
from app.session.commands import AskText, ContinueConversation, DeleteTurn, NewConversation
from app.session.conversation_folder import (
    RecordError,
    list_conversations,
    lock,
    read_about,
    read_events,
    read_history,
)
from app.session.erased_turns import erase, finish, finish_all
from app.session.events import (
    ConversationContinued,
    PlaybackFinished,
    PlaybackStarted,
    RecordingStopped,
    ReplyFinished,
    TurnOpened,
    TurnsRemoved,
)
from app.session.session_settings import Recording, SessionSettings
from app.session.transcript import how_to_continue, read_transcript
from engine_runtime.types import Modality
from tests.doubles.scripted_engine import Script, ScriptedEngine
from tests.tools.session_driver import Driver, running

RATE = 16_000
SECRET = "xylophone"


def turn(turn_id: int, t: float, text: str, source: str = "text") -> list[dict[str, Any]]:
    """Lines of a turn of 6 s: asked at `t`, committed after 2 s, answered from 3 to 5 s after it."""
    command = [{"t": t, "command": "AskText", "text": f" {text} "}] if source == "text" else []
    return [
        *command,
        {"t": t, "event": "TurnOpened", "turn_id": turn_id, "source": source, "text": text},
        {"t": t + 2.0, "event": "TurnCommitted", "turn_id": turn_id, "seconds": 1.5, "start_s": t},
        {"t": t + 2.5, "event": "ReplyTextDelta", "turn_id": turn_id, "text": f"re {text}",
         "is_subtitle": True},
        {"t": t + 3.0, "event": "PlaybackStarted", "turn_id": turn_id},
        {"t": t + 4.0, "event": "ReplyFinished", "turn_id": turn_id, "modality": "speech", "seconds": 2.0,
         "text": f"re {text}", "user_codes": 0, "codes": 12, "finish_reason": "stop"},
        {"t": t + 5.0, "event": "PlaybackFinished", "turn_id": turn_id},
    ]  # fmt: skip


def make(root: Path, *lines: dict[str, Any]) -> Path:
    """A conversation of three turns of 6 s, the second of which is secret; sound everywhere."""
    folder = root / "one"
    folder.mkdir(parents=True)
    about = {"format": 1, "started": "2026-11-20T10:00:00+00:00", "seconds": 24.0, "turns": 3,
             "first_words": "alpha", "is_ended": False, "bundle": "nano", "settings": {}}  # fmt: skip
    entries = [*turn(1, 2.0, "alpha"), *turn(2, 8.0, SECRET), *turn(3, 14.0, "gamma"), *lines]
    history = {"format": 1, "num_forgotten": 2, "exchanges": [
        {"turn_id": number, "user": [[number, 0]], "reply": [[number, 1]], "text": text}
        for number, text in ((1, "re alpha"), (2, f"re {SECRET}"), (3, "re gamma"))
    ]}  # fmt: skip
    (folder / "conversation.json").write_text(json.dumps(about))
    (folder / "history.json").write_text(json.dumps(history))
    (folder / "events.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    sound = GrowingWav(folder / "conversation.wav", RATE, 2)
    sound.append(np.full((24 * RATE, 2), 0.25, np.float32))
    sound.close()
    return folder


def texts_of(folder: Path) -> list[str]:
    return [known.event.text for known in read_transcript(folder) if isinstance(known.event, TurnOpened)]


def silent_s(folder: Path, channel: int) -> tuple[float, float]:
    """Beginning and end of the silence."""
    sound, rate = soundfile.read(folder / "conversation.wav", dtype="int16")
    (places,) = np.nonzero(sound[:, channel] == 0)
    if not len(places):
        return 0.0, 0.0
    assert len(places) == places[-1] - places[0] + 1, "one stretch"
    return places[0] / rate, (places[-1] + 1) / rate


def contains(folder: Path, words: str) -> list[str]:
    return [file.name for file in folder.iterdir() if words.encode() in file.read_bytes()]


def test_nothing_of_a_turn_is_left_and_the_others_stay(tmp_path: Path) -> None:
    folder = make(tmp_path)
    before = list(read_events(folder))
    erase(folder, [2])
    assert contains(folder, SECRET) == []
    assert texts_of(folder) == ["alpha", "gamma"]
    assert [entry["turn_id"] for entry in read_history(folder)["exchanges"]] == [1, 3]
    assert read_history(folder)["num_forgotten"] == 1
    assert (read_about(folder)["turns"], read_about(folder)["first_words"]) == (2, "alpha")
    kept = [entry for entry in before if SECRET not in json.dumps(entry) and entry.get("turn_id") != 2]
    assert list(read_events(folder)) == kept
    assert silent_s(folder, 0) == pytest.approx((6.5, 12.5))  # up to where the third turn can have begun
    assert silent_s(folder, 1) == pytest.approx((7.0, 13.5))  # from the end of the reply before
    assert sorted(file.name for file in folder.iterdir()) == sorted(
        ("conversation.json", "conversation.wav", "events.jsonl", "history.json")
    )
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir() if file.suffix != ".wav"} == {0o600}


def test_packed_sound_is_silenced_as_well(tmp_path: Path) -> None:
    """Also where the program was killed between the packed file and the one that it was made of."""
    folder = make(tmp_path)
    grown, packed = folder / "conversation.wav", folder / "conversation.flac"
    list(pack(grown, packed))
    shutil.copy(packed, tmp_path / "both")
    erase(folder, [2])
    sound, rate = soundfile.read(packed, dtype="int16")
    assert (sound[7 * rate : 12 * rate] == 0).all()
    assert (sound[: 6 * rate] != 0).all()
    shutil.copy(tmp_path / "both", packed)
    unpack(packed, grown)
    shutil.copy(tmp_path / "both", packed)
    erase(folder, [3])
    assert not packed.exists()
    assert silent_s(folder, 0)[0] == pytest.approx(12.5)


def test_the_first_words_are_those_of_the_next_turn(tmp_path: Path) -> None:
    folder = make(tmp_path)
    erase(folder, [1])
    assert read_about(folder)["first_words"] == SECRET
    erase(folder, [2, 3])
    assert (read_about(folder)["turns"], read_about(folder)["first_words"]) == (0, "")
    assert read_history(folder)["exchanges"] == []


def test_what_was_played_again_is_silent_too(tmp_path: Path) -> None:
    """Its reply, and what came from a record, which may be the same turn."""
    again = [
        {"t": 20.0, "event": "PlaybackStarted", "turn_id": 2},
        {"t": 21.0, "event": "TurnCancelled", "turn_id": 2, "reason": "user"},
        {"t": 22.0, "event": "PlaybackStarted", "turn_id": 0},
        {"t": 23.0, "event": "PlaybackFinished", "turn_id": 0},
    ]
    folder = make(tmp_path, *again)
    erase(folder, [2])
    sound, _ = soundfile.read(folder / "conversation.wav", dtype="int16")
    for channel in (0, 1):
        for start_s, end_s, is_silent in ((20, 21, True), (22, 23, True), (14.5, 19.9, False)):
            part = sound[round(start_s * RATE) : round(end_s * RATE), channel]
            assert part.any() != is_silent
            assert is_silent or part.all()


def test_a_question_that_was_asked_again_goes_with_its_earlier_answer(tmp_path: Path) -> None:
    again = [
        {"t": 19.0, "command": "RetryTurn", "turn_id": 2, "source": "text", "text": SECRET},
        {"t": 19.0, "event": "TurnsRemoved", "turn_ids": [2, 3]},
        *turn(4, 19.0, SECRET, "voice"),
    ]
    folder = make(tmp_path, *again)
    assert texts_of(folder) == ["alpha", SECRET]
    erase(folder, [4])
    assert texts_of(folder) == ["alpha"]
    assert contains(folder, SECRET) == []
    assert contains(folder, "gamma") == ["history.json"] or contains(folder, "gamma") == []


def test_damaged_lines_are_dropped(tmp_path: Path) -> None:
    folder = make(tmp_path)
    with (folder / "events.jsonl").open("a") as events:
        events.write('{"t": 9.0, "text": "' + SECRET)
    erase(folder, [2])
    assert contains(folder, SECRET) == []


def test_ids_of_erased_turns_are_not_used_again(tmp_path: Path) -> None:
    folder = make(tmp_path, {"t": 23.0, "event": "TurnsRemoved", "turn_ids": [3], "is_deleted": True})
    erase(folder, [3])
    assert how_to_continue(folder).last_turn_id == 3


class Killed(BaseException):
    """The program was killed."""


def test_a_kill_at_any_step_leaves_the_old_or_the_new_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make(tmp_path / "whole")
    done = tmp_path / "done" / "one"
    shutil.copytree(whole, done)
    erase(done, [2])
    wanted = {file.name: file.read_bytes() for file in done.iterdir()}
    steps = left = 0

    def dying(action: Any, *, after: bool) -> Any:
        def act(*given: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0 and not after:
                raise Killed
            result = action(*given, **named)
            if left < 0:
                raise Killed
            return result

        return act

    outcomes = set()
    for after in (False, True):
        for alive in range(100):
            folder, left = tmp_path / f"{after} {alive}" / "one", alive
            shutil.copytree(whole, folder)
            with monkeypatch.context() as patch:
                patch.setattr(ExportFile, "keep", dying(ExportFile.keep, after=after))
                patch.setattr(ExportFile, "abort", lambda *_: None)  # killed: nothing is cleaned up
                patch.setattr(erased_turns, "silence", dying(silence, after=after))
                patch.setattr(Path, "unlink", dying(Path.unlink, after=after))
                try:
                    erase(folder, [2])
                except Killed:
                    steps += 1
                else:
                    break
            (found,) = list_conversations(folder.parent)
            outcome = tuple(texts_of(folder))
            outcomes.add(outcome)
            exchanges = [entry["turn_id"] for entry in read_history(folder)["exchanges"]]
            assert (outcome, exchanges) in (
                (("alpha", SECRET, "gamma"), [1, 2, 3]),
                (("alpha", "gamma"), [1, 3]),
            )
            assert how_to_continue(folder).last_turn_id == 3
            if outcome == ("alpha", "gamma"):
                finish_all(folder.parent)
                parts = [file for file in folder.iterdir() if file.suffix == ".part"]
                assert {
                    file.name: file.read_bytes() for file in folder.iterdir() if file not in parts
                } == wanted
            assert found.folder == folder
    assert steps >= 10
    assert len(outcomes) == 2


def test_there_is_nothing_to_finish_in_a_whole_conversation(tmp_path: Path) -> None:
    folder = make(tmp_path)
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert finish(folder) == []
    finish_all(tmp_path)
    finish_all(tmp_path / "none")
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before


@pytest.mark.parametrize(
    "note",
    ["", "[]", "{}", '{"turn_ids": 5}', '{"turn_ids": [[]]}', '{"turn_ids": [1e400]}', "[" * 50_000, "\0"],
)
def test_a_note_that_makes_no_sense_is_refused_and_stops_no_window(tmp_path: Path, note: str) -> None:
    folder = make(tmp_path)
    (folder / "erased.json").write_text(note)
    for read in (read_transcript, how_to_continue, finish):
        with pytest.raises(RecordError, match="damaged"):
            read(folder)
    finish_all(tmp_path)
    assert len(list_conversations(tmp_path)) == 1


@pytest.mark.parametrize("name", ["conversation.json", "history.json", "events.jsonl", "conversation.wav"])
@pytest.mark.parametrize("damage", ["junk", "missing", "folder"])
def test_what_is_damaged_stops_no_window(tmp_path: Path, name: str, damage: str) -> None:
    folder = make(tmp_path)
    (folder / "erased.json").write_text('{"turn_ids": [2]}')
    (folder / name).unlink()
    if damage == "junk":
        (folder / name).write_bytes(b"\xff\0{")
    elif damage == "folder":
        (folder / name).mkdir()
    finish_all(tmp_path)


# ---- in a session ----


def ask(driver: Driver, *questions: str) -> None:
    for question in questions:
        driver.session.send(AskText(question))
        driver.await_event(ReplyFinished, len(driver.of(ReplyFinished)) + 1)


@pytest.mark.slow
def test_a_turn_that_is_deleted_while_it_is_recorded_leaves_nothing(tmp_path: Path) -> None:
    kept = SessionSettings(recording=Recording(tmp_path))
    with running(ScriptedEngine(Script(chunks=1)), kept) as driver:
        for count, question in enumerate(("first", SECRET, "third"), 1):
            driver.session.send(AskText(question))
            driver.await_event(PlaybackFinished, count)
        driver.session.send(DeleteTurn(2))
        driver.await_event(TurnsRemoved)
        driver.session.send(AskText("fourth"))
        driver.await_event(PlaybackFinished, 4)
    (found,) = list_conversations(tmp_path)
    assert contains(found.folder, SECRET) == []
    assert texts_of(found.folder) == ["first", "third", "fourth"]
    assert (found.turns, found.first_words, found.is_ended) == (3, "first", False)
    sound, rate = soundfile.read(found.folder / "conversation.wav")
    starts = [known.t for known in read_transcript(found.folder) if isinstance(known.event, PlaybackStarted)]
    assert len(starts) == 3
    for start in starts:
        assert sound[round(start * rate) : round((start + 0.5) * rate), 1].any()
    between = sound[round((starts[0] + 1.5) * rate) : round((starts[1] - 0.1) * rate), 1]
    assert not between.any()


@pytest.mark.slow
def test_the_reply_that_is_played_is_silent_from_its_beginning_to_its_last_block(tmp_path: Path) -> None:
    """Sound that was played and is not written yet is erased when it comes."""
    kept = SessionSettings(recording=Recording(tmp_path))
    with running(ScriptedEngine(Script(chunk_s=5.0)), kept) as driver:
        driver.session.send(AskText("first"))
        driver.await_event(PlaybackFinished)
        driver.session.send(AskText(SECRET))
        driver.await_event(PlaybackStarted, 2)
        driver.session.send(DeleteTurn(2))
        driver.await_event(TurnsRemoved)
    (found,) = list_conversations(tmp_path)
    sound, rate = soundfile.read(found.folder / "conversation.wav")
    (over,) = [
        known.t for known in read_transcript(found.folder) if isinstance(known.event, PlaybackFinished)
    ]
    assert sound[: round(over * rate), 1].any()
    assert not sound[round((over + 0.1) * rate) :, 1].any()


@pytest.mark.slow
@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_turn_of_an_earlier_run_is_erased_although_nothing_was_recorded_since(
    tmp_path: Path, is_recorded: bool
) -> None:
    kept = SessionSettings(recording=Recording(tmp_path), reply=Modality.TEXT)
    with running(ScriptedEngine(), kept) as driver:
        ask(driver, "first", SECRET)
    (found,) = list_conversations(tmp_path)
    settings = kept if is_recorded else SessionSettings(reply=Modality.TEXT)
    with running(ScriptedEngine(), settings) as driver:
        driver.session.send(how_to_continue(found.folder))
        driver.await_event(ConversationContinued)
        driver.session.send(DeleteTurn(2))
        driver.await_event(TurnsRemoved)
    assert contains(found.folder, SECRET) == []
    assert texts_of(found.folder) == ["first"]


@pytest.mark.slow
def test_a_turn_is_erased_from_the_own_folder_although_an_earlier_one_is_locked(tmp_path: Path) -> None:
    with running(ScriptedEngine(), SessionSettings(recording=Recording(tmp_path, name="earlier"))) as driver:
        ask(driver, "first")
    earlier = tmp_path / "earlier"
    kept = SessionSettings(recording=Recording(tmp_path / "now", name="now"), reply=Modality.TEXT)
    with running(ScriptedEngine(), kept) as driver:
        driver.session.send(how_to_continue(earlier))
        driver.await_event(ConversationContinued)
        ask(driver, SECRET)
        elsewhere = lock(earlier)
        driver.session.send(DeleteTurn(2))
        problem = driver.await_event(RecordingStopped)
    os.close(elsewhere)
    assert "another window" in problem.problem.what_is_wrong
    assert contains(tmp_path / "now" / "now", SECRET) == []
    assert texts_of(earlier) == ["first"]


@pytest.mark.slow
def test_a_turn_of_another_conversation_with_the_same_number_stays(tmp_path: Path) -> None:
    kept = SessionSettings(recording=Recording(tmp_path), reply=Modality.TEXT)
    with running(ScriptedEngine(), kept) as driver:
        ask(driver, "one of another")
    (other,) = list_conversations(tmp_path)
    with running(ScriptedEngine(), kept) as driver:
        ask(driver, SECRET)
        driver.session.send(NewConversation())
        driver.session.send(how_to_continue(other.folder))
        driver.await_event(ConversationContinued)
        driver.session.send(DeleteTurn(1))
        driver.await_event(TurnsRemoved)
    folders = {found.first_words: found.folder for found in list_conversations(tmp_path)}
    assert texts_of(folders[SECRET]) == [SECRET]
    assert texts_of(other.folder) == []
    assert isinstance(how_to_continue(other.folder), ContinueConversation)
