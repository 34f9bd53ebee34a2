"""The shortcuts work in each window of the program, and each window shows errors."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.audio.devices import KINDS
from app.gui.common.plain_text import PlainLabel
from app.gui.window.compact_window import CompactWindow
from app.gui.window.main_window import MainWindow
from app.gui.window.window_modes import DetachedView
from app.session.commands import CancelTurn, Mute, RescanDevices
from app.session.events import DeviceNoticed, ErrorRaised
from engine_runtime.errors import Problem
from tests.doubles.scripted_session import ScriptedSession

CTRL, NONE = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.NoModifier


def other_window(qtbot: QtBot, window: MainWindow, kind: str) -> CompactWindow | DetachedView:
    """The compact or the detached window, with the focus."""
    other: CompactWindow | DetachedView
    if kind == "compact":
        window.modes.enter_compact()
        other = window.modes.compact
    else:
        window.modes.detach_panel(True)
        other = window.modes.detached
    QApplication.processEvents()
    with qtbot.waitActive(other):
        other.activateWindow()
    return other


def test_all_windows_have_the_same_shortcuts(ready: MainWindow) -> None:
    kept = Qt.FindChildOption.FindDirectChildrenOnly
    windows = (ready, ready.modes.compact, ready.modes.detached)
    keys = [
        {found.key().toString(QKeySequence.SequenceFormat.PortableText) for found in shortcuts}
        for shortcuts in (window.findChildren(QShortcut, options=kept) for window in windows)
    ]
    assert {"Esc", "F1", "F9", "F10", "Ctrl+M", "Ctrl+Q"} <= keys[0]
    assert keys[0] == keys[1] == keys[2]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["compact", "detached"])
def test_keys_act_in_the_other_windows(
    qtbot: QtBot, ready: MainWindow, session: ScriptedSession, kind: str
) -> None:
    other = other_window(qtbot, ready, kind)
    for key, modifier in ((Qt.Key.Key_Escape, NONE), (Qt.Key.Key_M, CTRL), (Qt.Key.Key_R, CTRL)):
        qtbot.keyClick(other.windowHandle(), key, modifier)
    assert session.commands == [CancelTurn(), Mute(True), RescanDevices()]
    assert other.isVisible()
    qtbot.keyClick(other.windowHandle(), Qt.Key.Key_F10)
    assert (ready.isVisible(), ready.modes.compact.isVisible()) == (kind == "compact", kind != "compact")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["compact", "detached"])
def test_f9_in_the_other_windows(qtbot: QtBot, ready: MainWindow, kind: str) -> None:
    other = other_window(qtbot, ready, kind)
    qtbot.keyClick(other.windowHandle(), Qt.Key.Key_F9)
    assert ready.isVisible()
    assert not other.isVisible()
    assert ready.modes.shows_panel is (kind == "compact")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["compact", "detached"])
def test_the_program_ends_from_the_other_windows(qtbot: QtBot, ready: MainWindow, kind: str) -> None:
    other = other_window(qtbot, ready, kind)
    with qtbot.waitSignal(ready.closed):
        qtbot.keyClick(other.windowHandle(), Qt.Key.Key_Q, CTRL)


@pytest.mark.slow
def test_the_question_field_is_in_the_large_window(qtbot: QtBot, ready: MainWindow) -> None:
    other = other_window(qtbot, ready, "compact")
    with qtbot.waitActive(ready):
        qtbot.keyClick(other.windowHandle(), Qt.Key.Key_L, CTRL)
    qtbot.waitUntil(ready.composer.edit.hasFocus)
    assert not other.isVisible()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["compact", "detached"])
def test_errors_and_notices_are_in_every_window(
    qtbot: QtBot, ready: MainWindow, session: ScriptedSession, kind: str
) -> None:
    other = other_window(qtbot, ready, kind)
    banner, notice = other.banner, other.notice
    problem = Problem("No {kind} was found.", "Connect one.", kind=KINDS["microphone"])
    error = ErrorRaised(problem, is_about_sound=True)
    session.feed(error, error, DeviceNoticed(Problem("The microphone a is back.")))
    ready.bridge.poll()
    assert banner.isVisible()
    assert banner.message == ready.banner.message == "No microphone was found."
    assert notice.text() == "The microphone a is back."
    ready.toggle_language()
    qtbot.waitUntil(lambda: ready.banner.message != "No microphone was found.")
    assert banner.message == ready.banner.message
    banner.remedy_button.click()
    assert session.commands[-1] == RescanDevices()
    banner.close_button.click()
    assert ready.banner.message == ""
    assert not banner.isVisible()


@pytest.mark.slow
def test_the_compact_window_has_room_for_a_banner(
    qtbot: QtBot, ready: MainWindow, session: ScriptedSession
) -> None:
    compact = other_window(qtbot, ready, "compact")
    height, room = compact.height(), compact.screen().availableGeometry()
    place = QPoint(room.left(), room.bottom() - compact.frameGeometry().height())
    compact.move(place)
    session.feed(ErrorRaised(Problem("The microphone 'a' cannot be opened.", "Choose another one. " * 6)))
    ready.bridge.poll()
    banner = ready.modes.compact.banner

    def fits(label: PlainLabel) -> bool:
        is_high = label.height() >= label.heightForWidth(label.width())
        return is_high and banner.rect().contains(label.geometry())

    qtbot.waitUntil(lambda: compact.height() > height)
    labels = list(filter(PlainLabel.isVisible, banner.findChildren(PlainLabel)))
    qtbot.waitUntil(lambda: all(map(fits, labels)))
    qtbot.waitUntil(lambda: room.contains(compact.frameGeometry()))
    ready.banner.dismiss()
    qtbot.waitUntil(lambda: (compact.height(), compact.pos()) == (height, place))
