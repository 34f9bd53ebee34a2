"""Every view and dialog without a mouse and in Chinese: Tab reaches all that can be clicked and shows where
it is, keys press it, Escape closes it, no letter leads to two fields, and no text is left in English."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QRect, Qt, QTimer
from PySide6.QtGui import QAccessible, QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSlider,
    QAbstractSpinBox,
    QApplication,
    QComboBox,
    QDialog,
    QKeySequenceEdit,
    QLabel,
    QLineEdit,
    QMenu,
    QPlainTextEdit,
    QScrollBar,
    QTabBar,
    QToolButton,
    QWidget,
)
from pytestqt.qtbot import QtBot

from app import paths
from app.gui.conversation.history_dialog import HistoryDialog
from app.gui.settings.guide_dialog import GuideDialog
from app.gui.settings.settings_dialog import SettingsDialog
from app.gui.window.main_window import MainWindow
from app.gui.window.shortcuts import ShortcutsDialog
from app.sample_questions import load_samples
from app.session.events import ErrorRaised
from engine_runtime.errors import Problem
from tests.doubles.scripted_session import INTERRUPTED, NANO, ScriptedSession, conversation

OPERATED = (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSlider,
    QAbstractSpinBox,
    QComboBox,
    QKeySequenceEdit,
    QLineEdit,
    QPlainTextEdit,
    QTabBar,
)
"""What is used with the mouse."""
KEPT = Path(__file__).parents[3] / "data" / "version_0_1_0" / "conversations"
MOST = 300
"""Presses of Tab, after which a walk goes round in circles."""
SAME_IN_CHINESE = frozenset(
    """
    MOSS Voice nano moss speech USB headset English Whisper PyTorch TensorRT LLM Python Apache MB GB KiB ms
    RTF TTFA token mel pulse pywebrtc audio livekit native fp int float bfloat cosine quadratic uniform Intel
    Xeon AMD Ctrl Alt Shift Esc
    """.split()
)
"""Words of Latin letters that a Chinese reader expects to stand alone: names, units and keys."""
SAID = (
    "What is two plus three?",
    "What is the capital of France?",
    "The capital of France is Paris.",
    "What is the capital of Germany?",
    "The capital of Germany is Berlin.",
)
"""In the kept conversations."""
Open = Callable[[MainWindow], QWidget]


def converse(window: MainWindow) -> None:
    """A conversation, and an error that has a remedy."""
    session = window.bridge.session
    assert isinstance(session, ScriptedSession)
    for events in conversation(INTERRUPTED):
        session.feed(*events)
    session.feed(ErrorRaised(Problem("The sound device was lost.", "Check its cable."), is_about_sound=True))
    window.bridge.poll()
    window.latency.redraw()


def main_window(window: MainWindow) -> QWidget:
    """The window itself."""
    return window


def presenter(window: MainWindow) -> QWidget:
    """The presentation."""
    window.modes.present(True)
    assert window.modes.presenter is not None
    return window.modes.presenter


def compact(window: MainWindow) -> QWidget:
    """The compact window."""
    window.modes.enter_compact()
    return window.modes.compact


def detached(window: MainWindow) -> QWidget:
    """The latency view in a window of its own."""
    window.modes.toggle_detached()
    return window.modes.detached


def shown(dialog: QDialog) -> QDialog:
    """The dialog on show, without waiting until it is closed."""
    dialog.open()
    return dialog


def history(window: MainWindow) -> QDialog:
    """The kept conversations."""
    return shown(HistoryDialog(KEPT, window.look.theme, window.look.icons, window))


def all_settings(window: MainWindow) -> SettingsDialog:
    """All settings."""
    settings = window.settings
    dialog = SettingsDialog(window.applied.current, None, window, window.bridge, settings.tools, settings.gpu)
    dialog.open()
    return dialog


def guide(window: MainWindow) -> GuideDialog:
    """The guide of the first start."""
    return window.settings.open_guide()


def keys(window: MainWindow) -> QDialog:
    """The list of keys."""
    return shown(ShortcutsDialog(["Ctrl+M", "F1"], {}, window))


VIEWS = (main_window, presenter, compact, detached, history, all_settings, guide, keys)


def pages_of(view: QWidget) -> Iterator[QWidget]:
    """The view with each of its pages on show."""
    if isinstance(view, SettingsDialog):
        for index in range(view.tabs.count()):
            view.tabs.setCurrentIndex(index)
            yield view
    elif isinstance(view, GuideDialog):
        for index in range(view.stack.count()):
            if index:
                view.next_button.click()
            yield view
    else:
        yield view


def is_part(widget: QWidget) -> bool:
    """Whether it belongs to a field that takes the keys for it: the text of a number, the arrows of tabs."""
    parent = widget.parentWidget()
    fields = QAbstractSpinBox | QAbstractItemView | QComboBox | QKeySequenceEdit | QLineEdit | QTabBar
    return isinstance(widget, QScrollBar) or isinstance(parent, fields)


def is_reached_by_arrows(widget: QWidget) -> bool:
    """Whether Tab leads to another one of its group, which is the chosen one."""
    if not isinstance(widget, QAbstractButton) or widget.isChecked():
        return False
    group = widget.group()
    return widget.autoExclusive() or (group is not None and group.exclusive())


def operated(view: QWidget) -> set[QWidget]:
    """What can be used now, but for buttons that only scroll: the focus does that."""
    scrolling = {"More samples", "Earlier samples"}
    return {
        widget
        for kind in OPERATED
        for widget in view.findChildren(kind)
        if widget.window() is view
        and widget.isVisible()
        and widget.isEnabled()
        and not is_part(widget)
        and not is_reached_by_arrows(widget)
        and widget.accessibleName() not in scrolling
    }


def focused(view: QWidget) -> QWidget:
    """The widget that has the focus, or whose part has it."""
    widget = QApplication.focusWidget()
    assert widget is not None
    assert widget.window() is view
    while is_part(widget) and (parent := widget.parentWidget()) is not None:
        widget = parent
    return widget


def walk(view: QWidget, key: Qt.Key) -> list[QWidget]:
    """The widgets in the order of the focus, until it is back where it began."""
    found = [focused(view)]
    while len(found) < MOST:
        widget = QApplication.focusWidget()
        assert widget is not None
        QTest.keyClick(widget, key)
        if (now := focused(view)) is found[0]:
            return found
        assert now not in found, f"{now} and those after it keep the focus"
        found.append(now)
    raise AssertionError("the focus does not come back")


def looks(widget: QWidget) -> QImage:
    """The picture of a widget and of what is around it."""
    around = widget.parentWidget() or widget
    place = QRect(widget.mapTo(around, widget.rect().topLeft()), widget.size()).adjusted(-3, -3, 3, 3)
    return around.grab(place).toImage()


def name_of(widget: QWidget) -> str:
    """What a screen reader says."""
    interface = QAccessible.queryAccessibleInterface(widget)
    return widget.accessibleName() if interface is None else interface.text(QAccessible.Text.Name)


def take_focus(qtbot: QtBot, view: QWidget) -> None:
    """Make the view active, with the focus somewhere in it."""
    view.activateWindow()
    qtbot.waitUntil(lambda: QApplication.activeWindow() is view)
    if view.focusWidget() is None:
        QTest.keyClick(view, Qt.Key.Key_Tab)
    QApplication.processEvents()


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_tab_reaches_all_that_can_be_clicked_and_shows_where_it_is(
    qtbot: QtBot, ready: MainWindow, view: Open
) -> None:
    converse(ready)
    for page in pages_of(view(ready)):
        take_focus(qtbot, page)
        order = walk(page, Qt.Key.Key_Tab)
        assert operated(page) <= set(order)
        hidden: list[str] = []
        assert walk(page, Qt.Key.Key_Backtab) == [order[0], *reversed(order[1:])]
        for before, widget in zip([order[-1], *order], order, strict=False):
            assert name_of(widget), widget
            if before is not widget and page is not ready:  # which takes long to draw
                widget.setFocus(Qt.FocusReason.TabFocusReason)
                with_focus = looks(widget)
                before.setFocus(Qt.FocusReason.TabFocusReason)
                if looks(widget) == with_focus:
                    hidden.append(name_of(widget))
        assert hidden == []  # these do not show the focus


@pytest.mark.slow
@pytest.mark.parametrize("view", [main_window, presenter, detached, history, all_settings, guide, keys])
def test_space_presses_every_button(qtbot: QtBot, ready: MainWindow, view: Open) -> None:
    converse(ready)
    for page in pages_of(view(ready)):
        take_focus(qtbot, page)
        for widget in operated(page):
            has_menu = isinstance(widget, QToolButton) and widget.menu() is not None
            if isinstance(widget, QAbstractButton) and not has_menu:
                widget.setFocus()
                QTest.keyPress(widget, Qt.Key.Key_Space)
                assert widget.isDown(), name_of(widget)
                widget.setDown(False)  # what it would do is tested elsewhere
                QTest.keyRelease(widget, Qt.Key.Key_Space)


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh_CN"])
def test_each_letter_leads_to_one_field_of_a_page(ready: MainWindow, language: str) -> None:
    chosen = dataclasses.replace(ready.applied.current, language="zh_CN" if language == "zh_CN" else "en")
    ready.applied.apply(chosen)
    dialog = all_settings(ready)
    for index in range(dialog.tabs.count()):
        page = dialog.tabs.widget(index)
        assert page is not None
        named = [label for label in page.findChildren(QLabel) if label.buddy() is not None]
        letters = Counter(re.findall(r"&(\w)", " ".join(map(QLabel.text, named)).casefold()))
        assert [letter for letter, count in letters.items() if count > 1] == []
        # Qt gives the focus by a letter to what takes it itself, not by a proxy.
        fields = [(label.text(), label.buddy()) for label in named if "&" in label.text()]
        takes_none = Qt.FocusPolicy.NoFocus
        assert [text for text, field in fields if field.focusPolicy() is takes_none] == []
    dialog.close()


@pytest.mark.slow
def test_a_menu_is_used_with_keys_alone(qtbot: QtBot, ready: MainWindow) -> None:
    button, menu, chosen = ready.header.export_button, ready.header.menu, []
    ready.header.copy_wanted.connect(lambda: chosen.append("copy"))

    def choose() -> None:
        while menu.activeAction() is not ready.header.copy_action:
            QTest.keyClick(menu, Qt.Key.Key_Down)
        QTest.keyClick(menu, Qt.Key.Key_Return)

    # The menu runs an event loop of its own, in which the next keys come.
    menu.aboutToShow.connect(lambda: QTimer.singleShot(0, choose))
    take_focus(qtbot, ready)
    button.setFocus()
    QTest.keyClick(button, Qt.Key.Key_Space)
    assert chosen == ["copy"]
    assert not menu.isVisible()


@pytest.mark.slow
@pytest.mark.parametrize("view", [history, all_settings, guide, keys])
def test_a_dialog_fits_the_screen_and_escape_closes_it(qtbot: QtBot, ready: MainWindow, view: Open) -> None:
    dialog = view(ready)
    take_focus(qtbot, dialog)
    assert dialog.height() <= dialog.screen().availableSize().height()
    focus = QApplication.focusWidget()
    assert focus is not None
    QTest.keyClick(focus, Qt.Key.Key_Escape)
    assert not dialog.isVisible()


def texts_of(view: QWidget) -> Iterator[str]:
    """All that a user of the view can read or hear, without markup."""
    for label in view.findChildren(QLabel):
        yield re.sub(r"<[^>]*>|&\w+;", " ", label.text())
    for button in view.findChildren(QAbstractButton):
        yield from (button.text(), re.sub("<[^>]*>", " ", button.toolTip()))
    for box in view.findChildren(QComboBox):
        yield from (box.itemText(index) for index in range(box.count()))
    for line in view.findChildren(QLineEdit):
        yield line.placeholderText()
    for field in view.findChildren(QPlainTextEdit):
        yield field.placeholderText()
    for number in view.findChildren(QAbstractSpinBox):
        yield number.text()
    for tabs in view.findChildren(QTabBar):
        yield from (tabs.tabText(index) for index in range(tabs.count()))
    for menu in view.findChildren(QMenu):
        yield from (action.text() for action in menu.actions())
    for widget in (view, *view.findChildren(QWidget)):
        yield from (widget.windowTitle(), widget.accessibleName(), widget.accessibleDescription())


def english_in(text: str) -> list[str]:
    """Words that were not translated: any in a text without Chinese, two in a row in another one."""
    if re.search("[\u4e00-\u9fff]", text):
        text = re.sub("moss-voice trt build|Chrome trace", "", text)
        return re.findall(r"(?<![\w./-])[A-Za-z]{2,} [a-z]{2,}", text)
    words = re.findall("[A-Za-z]{2,}", re.sub(r"\S*/\S*", "", text))  # but for paths
    return [word for word in words if word not in SAME_IN_CHINESE]


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_no_text_is_left_in_english(ready: MainWindow, view: Open) -> None:
    ready.toggle_language()
    QApplication.processEvents()
    samples = load_samples(paths.assets_dir() / "samples")
    labels = (sample.label("zh_CN") for sample in samples)
    spoken = sorted([*NANO.examples, *labels, *SAID], key=len, reverse=True)
    for page in pages_of(view(ready)):
        for text in texts_of(page):
            shown = text
            for each in spoken:
                shown = shown.replace(each, "")
            assert english_in(shown) == [], text
