"""Actions on turns and conversations in the window: menu, retry, delete, save, continue."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFileDialog, QWidget
from pytestqt.qtbot import QtBot

from app import paths
from app.audio.growing_wav import GrowingWav
from app.gui.common.icons import Icons
from app.gui.common.preferences import Keep, Preferences, PreferenceStore
from app.gui.common.themes import Theme
from app.gui.conversation import transcript
from app.gui.conversation.bubbles import UserBubble
from app.gui.conversation.conversation_actions import TurnMenu
from app.gui.window.main_window import MainWindow
from app.session.commands import (
    ContinueConversation,
    DeleteTurn,
    NewConversation,
    PlayAgain,
    RetryTurn,
)
from app.session.events import (
    ConversationContinued,
    RecordingStopped,
    ReplyFinished,
    TurnCommitted,
    TurnOpened,
    TurnsRemoved,
)
from engine_runtime.errors import Problem
from engine_runtime.types import Modality
from tests.doubles.scripted_session import ScriptedSession
from tests.tools.widgets import question_of, reply_of


def test_a_turn_that_is_being_spoken_offers_nothing(qtbot: QtBot, theme: Theme, icons: Icons) -> None:
    parent = QWidget()
    qtbot.addWidget(parent)
    bubble = UserBubble("voice", "", "", theme, icons, parent)
    menu = TurnMenu(parent).menu_for(1, bubble, None)
    assert not any(action.isEnabled() for action in menu.actions() if not action.isSeparator())
    bubble.show_committed(1.2)
    menu = TurnMenu(parent).menu_for(1, bubble, None)
    enabled = [action.text() for action in menu.actions() if action.isEnabled() and not action.isSeparator()]
    assert len(enabled) == 2  # ask again, delete
    bubble.show_caption("what is two")
    menu = TurnMenu(parent).menu_for(1, bubble, None)
    menu.actions()[0].trigger()
    assert QGuiApplication.clipboard().text() == "what is two"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "conversations_dir", lambda: tmp_path / "kept")
    return tmp_path / "kept"


def feed_turn(window: MainWindow, session: ScriptedSession, turn_id: int, text: str) -> None:
    session.feed(
        TurnOpened(turn_id, "text", text),
        TurnCommitted(turn_id, 0.0),
        ReplyFinished(turn_id, Modality.SPEECH, 1.0, f"reply to {text}", 0, 12, "stop"),
    )
    window.bridge.poll()


def trigger(window: MainWindow, turn_id: int, words: str) -> None:
    user, reply = window.transcript.bubbles(turn_id)
    assert user is not None
    menu = window.conversations.menu.menu_for(turn_id, user, reply)
    (action,) = [action for action in menu.actions() if action.text().startswith(words)]
    assert action.isEnabled()
    action.trigger()
    menu.deleteLater()


@pytest.mark.slow
def test_a_new_conversation_empties_the_view_after_a_question(
    window: MainWindow, session: ScriptedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed_turn(window, session, 1, "one")
    session.commands.clear()
    monkeypatch.setattr("app.gui.conversation.conversation_actions.is_confirmed", lambda *_: False)
    window.conversations.start_new()
    assert (session.commands, window.transcript.turn_count) == ([], 1)
    monkeypatch.setattr("app.gui.conversation.conversation_actions.is_confirmed", lambda *_: True)
    window.conversations.start_new()
    assert (session.commands, window.transcript.turn_count) == ([NewConversation()], 0)


def test_a_new_conversation_is_kept_again(window: MainWindow, session: ScriptedSession) -> None:
    session.feed(RecordingStopped("", Problem("The disk is full.", "Free some space.")))
    window.bridge.poll()
    assert window.banner.message == "The disk is full."
    window.conversations.start_new()
    assert window.banner.message == ""


@pytest.mark.slow
def test_texts_are_copied(window: MainWindow, session: ScriptedSession) -> None:
    feed_turn(window, session, 1, "one")
    trigger(window, 1, "Copy the question")
    assert QGuiApplication.clipboard().text() == "one"
    trigger(window, 1, "Copy the reply")
    assert QGuiApplication.clipboard().text() == "reply to one"


def test_a_turn_is_asked_again_or_deleted(window: MainWindow, session: ScriptedSession) -> None:
    for turn_id, text in ((1, "one"), (2, "two")):
        feed_turn(window, session, turn_id, text)
    trigger(window, 2, "Ask again")
    assert session.commands[-1] == RetryTurn(2, "text", "two")
    trigger(window, 1, "Delete")
    assert session.commands[-1] == DeleteTurn(1)
    session.feed(TurnsRemoved((1,)))
    window.bridge.poll()
    assert window.transcript.bubbles(1) == (None, None)
    assert window.transcript.turn_count == 1


@pytest.mark.slow
def test_the_button_of_a_reply_opens_its_menu(
    window: MainWindow, session: ScriptedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed_turn(window, session, 1, "one")
    reply = reply_of(window.transcript, 1)
    shown: list[int] = []
    monkeypatch.setattr(window.conversations.menu, "popup", lambda turn_id, *_: shown.append(turn_id))
    reply.more.click()
    assert shown == [1]


@pytest.mark.slow
def test_the_sound_of_a_reply_is_saved(
    window: MainWindow, session: ScriptedSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed_turn(window, session, 1, "one")
    sound = np.full(100, 0.5, np.float32)
    monkeypatch.setattr(session, "reply_audio", lambda _: (sound, 24_000))
    for name in ("r.wav", "r.flac"):
        monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_, name=name: (str(tmp_path / name), ""))
        trigger(window, 1, "Save the reply")
        assert soundfile.info(tmp_path / name).frames == 100
        assert window.notice.text() == f"Saved as {tmp_path / name}."


@pytest.mark.slow
def test_the_sound_of_the_conversation_on_show_is_saved(
    qtbot: QtBot,
    window: MainWindow,
    session: ScriptedSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both sides of one that is kept with its sound, else the replies."""
    file = tmp_path / "c.flac"
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (str(file), ""))
    window.header.sound_action.trigger()
    assert window.notice.text() == "Nothing has been heard yet."
    for turn_id, text in ((1, "one"), (2, "two")):
        feed_turn(window, session, turn_id, text)
    sounds = {1: (np.full(24_000, 0.5, np.float32), 24_000), 2: (np.full(8_000, 0.25, np.float32), 8_000)}
    monkeypatch.setattr(session, "reply_audio", sounds.__getitem__)
    window.header.sound_action.trigger()
    saved, rate = soundfile.read(file)
    assert (rate, saved.ndim) == (24_000, 1)
    assert len(saved) == pytest.approx(3 * 24_000, abs=100), "two seconds, each with its gap"
    assert saved[12_000] == pytest.approx(0.5, abs=1e-3)
    assert saved[48_000] == pytest.approx(0.25, abs=1e-2)
    recorded = GrowingWav(tmp_path / "conversation.wav", 8_000, 2)
    recorded.append(np.full((4_000, 2), 0.5, np.float32))
    recorded.close()
    session.sound = recorded.path
    window.header.sound_action.trigger()
    qtbot.waitUntil(lambda: window.notice.text() == f"Saved as {file}.")
    saved, rate = soundfile.read(file)
    assert (rate, saved.shape) == (8_000, (4_000, 2))


@pytest.mark.slow
def test_the_conversation_on_show_is_copied_and_saved(
    window: MainWindow, session: ScriptedSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is not kept."""
    window.header.text_action.trigger()
    assert window.notice.text() == "Nothing has been said yet."
    monkeypatch.setattr(transcript, "ON_SCREEN", 1)
    feed_turn(window, session, 1, "one")
    session.feed(
        TurnOpened(2, "voice"),
        TurnCommitted(2, 1.24),
        ReplyFinished(2, Modality.SPEECH, 3.0, "", 0, 12, "stop"),
        TurnOpened(3, "voice"),
    )
    window.bridge.poll()
    assert window.transcript.bubbles(1) == (None, None)
    window.header.copy_action.trigger()
    assert QGuiApplication.clipboard().text() == (
        "You: one\n\nMOSS: reply to one\n\nYou (spoke 1.2 s)\n\nMOSS (spoke 3.0 s)\n"
    )
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (str(tmp_path / "c"), ""))
    window.header.text_action.trigger()
    saved = (tmp_path / "c.md").read_text()
    assert saved.startswith("# one\n\n20")
    assert "**You, 0:00:** one\n\n**MOSS:** reply to one\n\n" in saved
    assert saved.endswith("(spoke 1.2 s)**\n\n**MOSS (spoke 3.0 s)**\n")
    assert window.notice.text() == f"Saved as {tmp_path / 'c.md'}."
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (str(tmp_path / "no" / "c.md"), ""))
    window.header.text_action.trigger()
    assert "there is no folder" in window.banner.message


@pytest.mark.slow
def test_what_a_kill_has_left_is_finished_at_the_start(
    session: ScriptedSession, store: PreferenceStore, folder: Path
) -> None:
    kept = write_conversation(folder, is_ended=False)
    (kept / "erased.json").write_text('{"turn_ids": [4]}')
    (kept / ".history.json.abc.part").write_text("what was said")
    os.utime(kept / ".history.json.abc.part", (0, 0))
    window = MainWindow(session, store=store)
    window.start_session()
    window.close()
    window.deleteLater()
    assert not (kept / "erased.json").exists()
    assert not (kept / ".history.json.abc.part").exists()
    assert "one" not in (kept / "events.jsonl").read_text()


def write_conversation(folder: Path, *, is_ended: bool) -> Path:
    about = {
        "format": 1, "started": "2026-11-20T10:00:00+00:00", "seconds": 3.0, "turns": 1, "first_words": "one",
        "is_ended": is_ended,
    }  # fmt: skip
    lines = [
        {"t": 1.0, "event": "TurnOpened", "turn_id": 4, "source": "text", "text": "one"},
        {"t": 1.0, "event": "TurnCommitted", "turn_id": 4, "seconds": 0.0},
        {"t": 2.0, "event": "ReplyFinished", "turn_id": 4, "modality": "speech", "seconds": 1.0,
         "text": "two", "user_codes": 0, "codes": 12, "finish_reason": "stop"},
    ]  # fmt: skip
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "conversation.json").write_text(json.dumps(about))
    (folder / "a" / "history.json").write_text(json.dumps({"seed": 1}))
    (folder / "a" / "events.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder / "a"


@pytest.mark.slow
@pytest.mark.parametrize(("keep", "is_ended"), [("text", False), ("text", True), ("nothing", False)])
def test_the_latest_conversation_continues_after_a_restart(
    session: ScriptedSession, store: PreferenceStore, folder: Path, keep: Keep, is_ended: bool
) -> None:
    latest = write_conversation(folder, is_ended=is_ended)
    store.save(dataclasses.replace(store.load(), keep=keep))
    window = MainWindow(session, store=store)
    window.start_session()
    sent = [command for command in session.commands if isinstance(command, ContinueConversation)]
    if keep == "nothing" or is_ended:
        assert sent == []
    else:
        assert sent == [ContinueConversation(latest, {"seed": 1}, 4, 2.0)]
        session.feed(ConversationContinued(latest))
        window.bridge.poll()
        user, reply = question_of(window.transcript, 4), reply_of(window.transcript, 4)
        assert (user.body.text(), reply.body.text()) == ("one", "two")
        reply.again.click()
        assert session.commands[-1] == PlayAgain(4)  # there is no sound
    window.close()
    window.deleteLater()


def test_keeping_is_off_by_default(folder: Path) -> None:
    assert Preferences().session_settings().recording is None
    kept = Preferences(keep="sound").session_settings().recording
    assert kept is not None
    assert (kept.root, kept.with_sound) == (folder, True)
    text = Preferences(keep="text").session_settings().recording
    assert text is not None
    assert not text.with_sound
