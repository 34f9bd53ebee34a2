"""Push-to-talk with mouse, keys and hotkey: one press and one release, whatever happens in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from PySide6.QtCore import QEvent, QKeyCombination, QPoint, Qt
from PySide6.QtGui import QInputMethodEvent, QKeyEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLineEdit, QPushButton, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from app.gui.common.icons import Icons
from app.gui.common.themes import Theme
from app.gui.conversation.composer import Composer
from app.gui.window.global_hotkey import GlobalHotkey, HotkeyError
from app.gui.window.push_to_talk import PushToTalk
from app.gui.window.talk_button import TalkButton

LEFT = Qt.MouseButton.LeftButton


class FakeDesktop:
    """Takes combinations; "Ctrl+Alt+F1" is that of another program."""

    def __init__(self) -> None:
        self.taken: list[QKeyCombination] = []

    def grab(
        self, wanted: QKeyCombination, on_press: Callable[[], None], on_release: Callable[[], None]
    ) -> FakeDesktop:
        if wanted.key() == Qt.Key.Key_F1:
            raise HotkeyError("Another program uses the hotkey Ctrl+Alt+F1. Choose other keys.")
        self.taken.append(wanted)
        self.press, self.release = on_press, on_release
        return self

    def close(self) -> None:
        self.taken.pop()


class Scene:
    """A window with the button, a text field and another button."""

    def __init__(self, theme: Theme, icons: Icons) -> None:
        self.window = QWidget()
        self.button, self.edit, self.other = TalkButton(theme, icons), QLineEdit(), QPushButton("other")
        layout = QVBoxLayout(self.window)
        for widget in (self.edit, self.other, self.button):
            layout.addWidget(widget)
        self.desktop = FakeDesktop()
        self.push = PushToTalk(self.window, self.button, GlobalHotkey(grab=self.desktop.grab))
        self.held: list[bool] = []
        self.failures: list[str] = []
        self.push.held.connect(self.held.append)
        self.push.failed.connect(lambda error: self.failures.append(str(error)))
        self.window.show()
        self.push.apply(is_offered=True, keys="Ctrl+Alt+T")
        self.other.setFocus()

    def key(self, kind: QEvent.Type, key: Qt.Key, *, repeats: bool = False) -> None:
        """A key event as the desktop delivers it to the window."""
        event = QKeyEvent(kind, key, Qt.KeyboardModifier.NoModifier, " ", repeats)
        QApplication.sendEvent(self.window.windowHandle(), event)


@pytest.fixture
def scene(qtbot: QtBot, theme: Theme, icons: Icons) -> Scene:
    scene = Scene(theme, icons)
    qtbot.addWidget(scene.window)
    qtbot.waitActive(scene.window)
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
    scene.desktop.press()
    qtbot.mouseRelease(scene.button, LEFT)
    assert scene.held == [True]
    QApplication.sendEvent(scene.window, QEvent(QEvent.Type.WindowDeactivate))
    assert scene.held == [True]  # the hotkey is meant for other windows
    scene.desktop.release()
    assert scene.held == [True, False]


def test_a_second_window_has_a_button_and_keys_of_its_own(
    qtbot: QtBot, scene: Scene, theme: Theme, icons: Icons
) -> None:
    second = QWidget()
    qtbot.addWidget(second)
    button = TalkButton(theme, icons, second)
    scene.push.add(second, button)
    scene.push.apply(is_offered=True, keys="Ctrl+Alt+T")
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
    scene.desktop.press()
    scene.push.apply(is_offered=False, keys="Ctrl+Alt+T")
    assert scene.held == [True, False]
    assert not scene.button.isVisible()
    assert scene.desktop.taken == []
    scene.edit.setFocus()
    scene.other.setFocus()
    scene.key(QEvent.Type.KeyPress, Qt.Key.Key_Space)
    assert scene.held == [True, False]


def test_a_hotkey_of_another_program_is_said_once(scene: Scene) -> None:
    for _ in range(2):
        scene.push.apply(is_offered=True, keys="Ctrl+Alt+F1")
    assert scene.failures == ["Another program uses the hotkey Ctrl+Alt+F1. Choose other keys."]
    assert scene.desktop.taken == []
    scene.push.apply(is_offered=True, keys="F9")
    assert [taken.key() for taken in scene.desktop.taken] == [Qt.Key.Key_F9]
    assert len(scene.failures) == 1
    scene.push.close()
    assert scene.desktop.taken == []


def test_a_word_that_is_being_composed_keeps_its_spaces(scene: Scene, theme: Theme, icons: Icons) -> None:
    composer = Composer(theme, icons)
    scene.window.layout().addWidget(composer)
    composer.edit.setFocus()
    assert scene.push.keys == ["Space", "Ctrl+Alt+T"]
    QApplication.sendEvent(composer.edit, QInputMethodEvent("ni", []))
    assert scene.push.keys == ["Ctrl+Alt+T"]
    QApplication.sendEvent(composer.edit, QInputMethodEvent("", []))
    assert scene.push.keys == ["Space", "Ctrl+Alt+T"]
