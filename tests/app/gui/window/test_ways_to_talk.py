"""Push-to-talk with mouse, keys and hotkey, and "do not interrupt": commands, preferences, the badge."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
from PySide6.QtCore import QEvent, QKeyCombination, QPoint, Qt
from PySide6.QtGui import QInputMethodEvent, QKeyEvent, QKeySequence
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLabel, QLineEdit, QPushButton, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from app.gui.common.icons import Icons
from app.gui.common.preferences import PreferenceStore
from app.gui.common.themes import Theme
from app.gui.conversation.composer import Composer
from app.gui.window.controls import TalkButton
from app.gui.window.global_hotkey import Action, Hotkey, HotkeyEvents
from app.gui.window.main_window import MainWindow
from app.gui.window.portal_shortcuts import HotkeyError
from app.gui.window.shortcuts import ShortcutsDialog
from app.gui.window.ways_to_talk import PushToTalk
from app.session.commands import ApplySettings, HoldToTalk, Mute
from app.session.events import MicrophoneSilent, TurnCancelled, TurnOpened
from app.settings import InputMode, StartSettings
from tests.doubles.scripted_session import ScriptedSession
from tests.tools.widgets import question_of

LEFT = Qt.MouseButton.LeftButton


class FakeDesktop:
    """Takes combinations; "Ctrl+Alt+F1" is that of another program."""

    def __init__(self) -> None:
        self.taken: dict[Action, QKeyCombination] = {}
        self.events: HotkeyEvents | None = None

    def grab(self, wanted: Mapping[Action, Hotkey], events: HotkeyEvents) -> FakeDesktop:
        for action, hotkey in wanted.items():
            if hotkey.keys.key() == Qt.Key.Key_F1:
                events.fail(HotkeyError("Another program uses the hotkey Ctrl+Alt+F1.", "Choose other keys."))
            else:
                self.taken[action] = hotkey.keys
        self.events = events
        return self

    def ungrab(self) -> None:
        self.taken.clear()

    def press(self, action: Action, token: str = "") -> None:
        assert self.events is not None
        self.events.press(action, token)

    def release(self, action: Action) -> None:
        assert self.events is not None
        self.events.release(action)


class Scene:
    """A window with the button, a text field and another button."""

    def __init__(self, theme: Theme, icons: Icons) -> None:
        self.window = QWidget()
        self.button, self.edit, self.other = TalkButton(theme, icons), QLineEdit(), QPushButton("other")
        layout = QVBoxLayout(self.window)
        for widget in (self.edit, self.other, self.button):
            layout.addWidget(widget)
        self.push = PushToTalk(self.window, self.button)
        self.held: list[bool] = []
        self.push.held.connect(self.held.append)
        self.window.show()
        self.push.offer(is_offered=True, keys="Ctrl+Alt+T")
        self.other.setFocus()

    def key(self, kind: QEvent.Type, key: Qt.Key, *, repeats: bool = False) -> None:
        """A key event as the desktop delivers it to the window."""
        event = QKeyEvent(kind, key, Qt.KeyboardModifier.NoModifier, " ", repeats)
        QApplication.sendEvent(self.window.windowHandle(), event)


@pytest.fixture
def scene(qtbot: QtBot, theme: Theme, icons: Icons) -> Scene:
    scene = Scene(theme, icons)
    qtbot.addWidget(scene.window)
    with qtbot.waitActive(scene.window):
        scene.window.activateWindow()
    return scene


def test_the_button_is_held_with_the_mouse(qtbot: QtBot, scene: Scene) -> None:
    qtbot.mousePress(scene.button, LEFT)
    assert scene.button.text() == "Release to send"
    qtbot.mouseMove(scene.button, QPoint(-50, -50))
    assert scene.held == [True]
    qtbot.mouseRelease(scene.button, LEFT, pos=QPoint(-50, -50))
    assert scene.held == [True, False]
    assert scene.button.text() == scene.button.accessibleName() == "Hold to talk"


def test_other_mouse_buttons_do_nothing(qtbot: QtBot, scene: Scene) -> None:
    qtbot.mouseClick(scene.button, Qt.MouseButton.RightButton)
    assert scene.held == []


def test_who_cannot_hold_a_button_clicks_twice(scene: Scene) -> None:
    scene.button.click()
    assert scene.held == [True]
    scene.button.click()
    assert scene.held == [True, False]


def test_space_is_held_and_its_repetition_is_ignored(qtbot: QtBot, scene: Scene) -> None:
    clicks: list[int] = []
    scene.other.clicked.connect(lambda: clicks.append(1))
    scene.key(QEvent.Type.KeyPress, Qt.Key.Key_Space)
    for _ in range(3):
        scene.key(QEvent.Type.KeyRelease, Qt.Key.Key_Space, repeats=True)
        scene.key(QEvent.Type.KeyPress, Qt.Key.Key_Space, repeats=True)
    # A repetition whose two halves came apart, and which Qt took for a release and a press.
    scene.key(QEvent.Type.KeyRelease, Qt.Key.Key_Space)
    scene.key(QEvent.Type.KeyPress, Qt.Key.Key_Space)
    qtbot.wait(60)
    assert scene.held == [True]
    scene.key(QEvent.Type.KeyRelease, Qt.Key.Key_Space)
    qtbot.waitUntil(lambda: scene.held == [True, False])
    assert clicks == []


def test_space_in_a_text_field_is_text(scene: Scene) -> None:
    scene.edit.setFocus()
    QTest.keyClick(scene.window.windowHandle(), Qt.Key.Key_Space)
    assert scene.edit.text() == " "
    assert scene.held == []


def test_space_is_for_a_control_that_was_reached_with_the_keyboard(scene: Scene) -> None:
    clicks: list[int] = []
    scene.other.clicked.connect(lambda: clicks.append(1))
    scene.edit.setFocus()
    QTest.keyClick(scene.window.windowHandle(), Qt.Key.Key_Tab)
    assert scene.other.hasFocus()
    QTest.keyClick(scene.window.windowHandle(), Qt.Key.Key_Space)
    assert (len(clicks), scene.held) == (1, [])
    QTest.keyClick(scene.window.windowHandle(), Qt.Key.Key_Tab)
    assert scene.button.hasFocus()
    QTest.keyClick(scene.window.windowHandle(), Qt.Key.Key_Space)
    assert scene.held == [True, False]


def test_the_combination_works_in_a_text_field(qtbot: QtBot, scene: Scene) -> None:
    scene.edit.setFocus()
    modifiers = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.AltModifier
    QTest.keyPress(scene.window.windowHandle(), Qt.Key.Key_T, modifiers)
    assert scene.held == [True]
    QTest.keyRelease(scene.window.windowHandle(), Qt.Key.Key_T)  # the modifiers came up first
    qtbot.waitUntil(lambda: scene.held == [True, False])
    assert scene.edit.text() == ""


@pytest.mark.parametrize("kind", [QEvent.Type.WindowDeactivate, QEvent.Type.Hide])
def test_a_window_that_is_left_lets_go(qtbot: QtBot, scene: Scene, kind: QEvent.Type) -> None:
    qtbot.mousePress(scene.button, LEFT)
    scene.key(QEvent.Type.KeyPress, Qt.Key.Key_Space)
    QApplication.sendEvent(scene.window, QEvent(kind))
    assert scene.held == [True, False]
    scene.key(QEvent.Type.KeyRelease, Qt.Key.Key_Space)
    qtbot.mouseRelease(scene.button, LEFT)
    assert scene.held == [True, False]


def test_several_ways_at_a_time_are_one_press(qtbot: QtBot, scene: Scene) -> None:
    qtbot.mousePress(scene.button, LEFT)
    scene.push.hold_hotkey(True)
    qtbot.mouseRelease(scene.button, LEFT)
    assert scene.held == [True]
    QApplication.sendEvent(scene.window, QEvent(QEvent.Type.WindowDeactivate))
    assert scene.held == [True]  # the hotkey is meant for other windows
    scene.push.hold_hotkey(False)
    assert scene.held == [True, False]


def test_a_second_window_has_a_button_and_keys_of_its_own(
    qtbot: QtBot, scene: Scene, theme: Theme, icons: Icons
) -> None:
    second = QWidget()
    qtbot.addWidget(second)
    button = TalkButton(theme, icons, second)
    scene.push.add_window(second, button)
    scene.push.offer(is_offered=True, keys="Ctrl+Alt+T")
    with qtbot.waitActive(second):
        second.show()
        second.activateWindow()
    assert button.isVisible()
    QTest.keyPress(second.windowHandle(), Qt.Key.Key_Space)
    assert scene.held == [True]
    assert button.text() == scene.button.text() == "Release to send"
    second.hide()
    assert scene.held == [True, False]


def test_without_push_to_talk_nothing_is_taken(scene: Scene) -> None:
    scene.push.hold_hotkey(True)
    scene.push.offer(is_offered=False, keys="Ctrl+Alt+T")
    assert scene.held == [True, False]
    assert not scene.button.isVisible()
    scene.push.hold_hotkey(True)
    scene.edit.setFocus()
    scene.other.setFocus()
    scene.key(QEvent.Type.KeyPress, Qt.Key.Key_Space)
    assert scene.held == [True, False]


def test_a_word_that_is_being_composed_keeps_its_spaces(scene: Scene, theme: Theme, icons: Icons) -> None:
    composer = Composer(theme, icons)
    layout = scene.window.layout()
    assert layout is not None
    layout.addWidget(composer)
    composer.edit.setFocus()
    assert scene.push.keys == ["Space", "Ctrl+Alt+T"]
    QApplication.sendEvent(composer.edit, QInputMethodEvent("ni", []))
    assert scene.push.keys == ["Ctrl+Alt+T"]
    QApplication.sendEvent(composer.edit, QInputMethodEvent("", []))
    assert scene.push.keys == ["Space", "Ctrl+Alt+T"]


def choose(window: MainWindow, input_mode: InputMode, hotkey: str = "") -> None:
    window.applied.apply(dataclasses.replace(window.applied.current, input_mode=input_mode, hotkey=hotkey))


def test_the_button_is_there_where_push_to_talk_is_chosen(ready: MainWindow) -> None:
    button = ready.controls.talk_button
    assert not button.isVisible()
    modes: tuple[tuple[InputMode, str], ...] = (("push", "Hold Space to talk"), ("both", "Listening"))
    for mode, word in modes:
        choose(ready, mode)
        assert button.isVisible()
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
    assert ready.ways.chosen_keys == {}
    choose(ready, "both", "Ctrl+Alt+Space")
    ready.applied.apply(dataclasses.replace(ready.applied.current, mute_hotkey="Ctrl+Alt+M"))
    dialog = ShortcutsDialog(["Ctrl+M"], ready.ways.chosen_keys, ready)
    qtbot.addWidget(dialog)
    assert [label.text() for label in dialog.findChildren(QLabel)] == [
        "Space",
        "Hold to talk; types a space while you type a question",
        "Ctrl+Alt+Space",
        "Hold to talk",
        "Ctrl+Alt+M",
        "Mute the microphone, in every window",
        "Ctrl+M",
        "Mute the microphone",
    ]
    assert "Ctrl+Alt+Space" in ready.controls.talk_button.toolTip()


@pytest.fixture
def desktop(monkeypatch: pytest.MonkeyPatch) -> FakeDesktop:
    desktop = FakeDesktop()
    monkeypatch.setattr("app.gui.window.global_hotkey.grab_of_desktop", lambda: desktop.grab)
    return desktop


def taken_keys(desktop: FakeDesktop) -> dict[Action, str]:
    return {action: QKeySequence(keys).toString() for action, keys in desktop.taken.items()}


def test_hotkeys_of_the_desktop_talk_mute_and_show_the_window(
    qtbot: QtBot, desktop: FakeDesktop, ready: MainWindow, session: ScriptedSession
) -> None:
    chosen = dataclasses.replace(
        ready.applied.current, hotkey="Ctrl+Alt+T", mute_hotkey="Ctrl+Alt+M", window_hotkey="F12"
    )
    ready.applied.apply(chosen)
    assert taken_keys(desktop) == {"mute": "Ctrl+Alt+M", "window": "F12"}, "nobody talks by keys"
    ready.applied.apply(dataclasses.replace(ready.applied.current, input_mode="both"))
    assert taken_keys(desktop) == {"talk": "Ctrl+Alt+T", "mute": "Ctrl+Alt+M", "window": "F12"}
    session.commands.clear()
    desktop.press("talk")
    desktop.release("talk")
    desktop.press("mute")
    desktop.release("mute")
    desktop.press("mute")
    assert session.commands == [HoldToTalk(True), HoldToTalk(False), Mute(True), Mute(False)]
    with qtbot.waitActive(ready):
        ready.activateWindow()
    desktop.press("window", "token")
    assert not ready.isVisible() or ready.isMinimized()
    desktop.press("window")
    assert ready.isVisible()
    assert not ready.isMinimized()
    ready.close()
    assert desktop.taken == {}


def test_a_hotkey_that_another_action_has_is_said(desktop: FakeDesktop, ready: MainWindow) -> None:
    chosen = dataclasses.replace(ready.applied.current, mute_hotkey="F12", window_hotkey="F12")
    ready.applied.apply(chosen)
    assert taken_keys(desktop) == {"mute": "F12"}
    assert "F12" in ready.banner.message
    assert "show or hide the window" in ready.banner.message


def test_a_hotkey_of_another_program_is_said_once(desktop: FakeDesktop, ready: MainWindow) -> None:
    choose(ready, "push", "Ctrl+Alt+F1")
    assert "Another program" in ready.banner.message
    assert desktop.taken == {}
    ready.banner.dismiss()
    ready.toggle_theme()
    assert ready.banner.message == ""
    choose(ready, "push", "F9")
    assert taken_keys(desktop) == {"talk": "F9"}
    assert ready.banner.message == ""
    choose(ready, "push", "Ctrl+Alt+F1")
    assert "Another program" in ready.banner.message
    choose(ready, "push", "F9")
    assert ready.banner.message == "", "other keys were chosen"


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
    sent = [command.settings for command in session.commands if isinstance(command, ApplySettings)]
    assert len(session.commands) == len(sent)
    blocked, allowed = (settings.turn_taking for settings in sent)
    assert not blocked.barge_in
    assert (allowed.barge_in, allowed.barge_in_ms) == (True, 500)
    ready.applied.apply(dataclasses.replace(ready.applied.current, interruption="never"))
    assert button.isChecked()
    assert button.accessibleName() == "Do not interrupt replies"


def test_a_press_without_speech_is_answered_in_the_transcript(ready: MainWindow) -> None:
    ready.bridge.turn_opened.emit(TurnOpened(1, "voice"))
    ready.bridge.turn_cancelled.emit(TurnCancelled(1, "nothing_heard"))
    assert question_of(ready.transcript, 1).caption.text() == "You spoke · nothing was heard"
    assert ready.transcript.bubbles(1)[1] is None


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
    with qtbot.waitActive(ready):
        ready.activateWindow()
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
