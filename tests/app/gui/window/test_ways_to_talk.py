"""Push-to-talk and "do not interrupt" in the window: commands, preferences, and what the badge says."""

from __future__ import annotations

import dataclasses

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel
from pytestqt.qtbot import QtBot

from app.gui.common.preferences import PreferenceStore
from app.gui.window.main_window import MainWindow
from app.gui.window.shortcuts_dialog import ShortcutsDialog
from app.session.commands import HoldToTalk
from app.session.events import MicrophoneSilent, TurnCancelled, TurnOpened
from app.settings import InputMode, StartSettings
from tests.doubles.scripted_session import ScriptedSession, opening


@pytest.fixture
def ready(window: MainWindow, session: ScriptedSession) -> MainWindow:
    session.feed(*opening())
    window.bridge.poll()
    session.commands.clear()
    return window


def choose(window: MainWindow, input_mode: InputMode, hotkey: str = "") -> None:
    window.applied.apply(dataclasses.replace(window.applied.current, input_mode=input_mode, hotkey=hotkey))


def test_the_button_is_there_where_push_to_talk_is_chosen(ready: MainWindow) -> None:
    button = ready.controls.talk_button
    assert not button.isVisible()
    for mode, is_visible, word in (("push", True, "Hold Space to talk"), ("both", True, "Listening")):
        choose(ready, mode)  # type: ignore[arg-type]
        assert button.isVisible() is is_visible
        assert ready.header.badge.word == word
    choose(ready, "voice")
    assert not button.isVisible()


def test_it_is_held_by_mouse_and_key(qtbot: QtBot, ready: MainWindow, session: ScriptedSession) -> None:
    choose(ready, "push")
    session.commands.clear()
    qtbot.mousePress(ready.controls.talk_button, Qt.MouseButton.LeftButton)
    qtbot.mouseRelease(ready.controls.talk_button, Qt.MouseButton.LeftButton)
    assert session.commands == [HoldToTalk(True), HoldToTalk(False)]
    ready.hide()
    assert len(session.commands) == 2


def test_a_window_that_is_closed_lets_go(qtbot: QtBot, ready: MainWindow, session: ScriptedSession) -> None:
    choose(ready, "push")
    session.commands.clear()
    qtbot.mousePress(ready.controls.talk_button, Qt.MouseButton.LeftButton)
    ready.close()
    assert session.commands == [HoldToTalk(True), HoldToTalk(False)]


@pytest.mark.slow
def test_the_command_line_wins(qtbot: QtBot, session: ScriptedSession, store: PreferenceStore) -> None:
    start = StartSettings(input_mode="push", given=frozenset({"input_mode"}))
    window = MainWindow(session, store, start=start)
    window.show()
    assert window.controls.talk_button.isVisible()
    assert store.load().input_mode == "voice"
    window.close()


@pytest.mark.slow
def test_the_list_of_shortcuts_names_the_keys(qtbot: QtBot, ready: MainWindow) -> None:
    assert ready.ways.talk_keys == []
    choose(ready, "both", "Ctrl+Alt+Space")
    dialog = ShortcutsDialog(["Ctrl+M"], ready.ways.talk_keys, ready)
    qtbot.addWidget(dialog)
    assert [label.text() for label in dialog.findChildren(QLabel)] == [
        "Space",
        "Hold to talk; a space in a question that you have begun to type",
        "Ctrl+Alt+Space",
        "Hold to talk",
        "Ctrl+M",
        "Mute the microphone",
    ]
    assert "Ctrl+Alt+Space" in ready.controls.talk_button.toolTip()


@pytest.mark.slow
def test_a_hotkey_that_cannot_be_used_is_said_in_the_banner(ready: MainWindow) -> None:
    choose(ready, "push", "Ctrl+Alt+Space")
    assert "X11" in ready.banner.message
    ready.banner.dismiss()
    ready.toggle_theme()
    assert ready.banner.message == ""


@pytest.mark.slow
def test_do_not_interrupt_and_back(ready: MainWindow, session: ScriptedSession) -> None:
    ready.applied.apply(dataclasses.replace(ready.applied.current, interruption="half_second"))
    session.commands.clear()
    button = ready.controls.interruption_button
    button.click()
    button.click()
    blocked, allowed = (command.settings.turn_taking for command in session.commands)  # type: ignore[union-attr]
    assert not blocked.barge_in
    assert (allowed.barge_in, allowed.barge_in_ms) == (True, 500)
    ready.applied.apply(dataclasses.replace(ready.applied.current, interruption="never"))
    assert button.isChecked()
    assert button.accessibleName() == "Do not interrupt replies"


def test_a_press_without_speech_is_answered_in_the_transcript(ready: MainWindow) -> None:
    ready.bridge.turn_opened.emit(TurnOpened(1, "voice"))
    ready.bridge.turn_cancelled.emit(TurnCancelled(1, "nothing_heard"))
    user, reply = ready.transcript.bubbles(1)
    assert user.caption.text() == "You spoke · nothing was heard"
    assert reply is None


def test_the_badge_says_that_the_microphone_is_silent(ready: MainWindow) -> None:
    badge = ready.header.badge
    assert badge.word == "Listening"
    ready.bridge.microphone_silent.emit(MicrophoneSilent(True))
    assert badge.word == "No sound"
    assert "silence" in badge.toolTip()
    ready.controls.mute_button.setChecked(True)
    assert badge.word == "Muted"
    ready.controls.mute_button.setChecked(False)
    assert badge.word == "No sound"
    ready.bridge.microphone_silent.emit(MicrophoneSilent(False))
    assert badge.word == "Listening"


@pytest.mark.slow
def test_space_talks_until_a_question_is_typed(
    qtbot: QtBot, ready: MainWindow, session: ScriptedSession
) -> None:
    choose(ready, "push")
    qtbot.waitActive(ready)
    ready.composer.edit.setFocus()
    session.commands.clear()
    qtbot.keyPress(ready.windowHandle(), Qt.Key.Key_Space)
    assert session.commands == [HoldToTalk(True)]
    ready.controls.volume.setFocus()  # the focus changes while Space is down
    qtbot.keyRelease(ready.windowHandle(), Qt.Key.Key_Space)
    qtbot.waitUntil(lambda: session.commands == [HoldToTalk(True), HoldToTalk(False)])
    ready.composer.edit.setFocus()
    qtbot.keyClicks(ready.composer.edit, "two")
    qtbot.keyClick(ready.windowHandle(), Qt.Key.Key_Space)
    qtbot.keyClicks(ready.composer.edit, "words")
    assert ready.composer.edit.toPlainText() == "two words"
    assert len(session.commands) == 2


@pytest.mark.slow
def test_the_badge_names_a_key_that_works(ready: MainWindow, session: ScriptedSession) -> None:
    badge = ready.header.badge
    choose(ready, "push")
    ready.composer.edit.setFocus()
    assert badge.word == "Hold Space to talk"
    ready.composer.edit.setPlainText("half a quest")
    assert badge.word == "Hold the button to talk"
    choose(ready, "push", "Ctrl+Alt+T")
    assert badge.word == "Hold Ctrl+Alt+T to talk"
    assert "Space" not in badge.toolTip()
    ready.composer.edit.clear()
    assert badge.word == "Hold Space to talk"
    assert "Space or Ctrl+Alt+T" in badge.toolTip()
    assert ready.modes.compact.badge.word == badge.word
