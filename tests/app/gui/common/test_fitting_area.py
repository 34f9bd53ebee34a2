"""The area that scrolls what is too large for the screen."""

from __future__ import annotations

from PySide6.QtWidgets import QApplication, QLabel, QStackedWidget, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from app.gui.common.fitting_area import FittingArea


def labelled(text: str) -> tuple[QWidget, QLabel]:
    """A widget with a label that wraps."""
    content, label = QWidget(), QLabel(text)
    label.setWordWrap(True)
    QVBoxLayout(content).addWidget(label)
    return content, label


def test_a_text_that_grows_is_not_cut_off(qtbot: QtBot) -> None:
    content, label = labelled("short")
    area = FittingArea(content, fits_text=True)
    qtbot.addWidget(area)
    area.resize(300, 200)
    area.show()
    before = content.minimumHeight()
    label.setText("some words that wrap " * 20)
    qtbot.waitUntil(lambda: content.minimumHeight() > before)
    assert content.height() >= content.heightForWidth(content.width())
    assert area.minimumSizeHint().height() >= content.minimumHeight()


def test_a_page_has_its_height_before_it_is_shown(qtbot: QtBot) -> None:
    stack = QStackedWidget()
    qtbot.addWidget(stack)
    contents = [labelled("some words that wrap " * count)[0] for count in (1, 20)]
    for content in contents:
        stack.addWidget(FittingArea(content, fits_text=True))
    stack.resize(300, 900)
    stack.show()
    before = [content.minimumHeight() for content in contents]
    assert before == [content.heightForWidth(300) for content in contents]
    stack.resize(500, 900)
    assert contents[1].minimumHeight() == contents[1].heightForWidth(500) < before[1]


def test_content_in_a_frame_is_not_scrolled_where_it_fits(qtbot: QtBot) -> None:
    content = QWidget()
    content.setMinimumSize(200, 100)
    area = FittingArea(content)
    area.setProperty("role", "reading")  # has a border
    qtbot.addWidget(area)
    area.show()
    area.resize(area.minimumSizeHint())
    QApplication.processEvents()
    assert area.viewport().size() == content.minimumSize()


def test_a_window_that_grows_stays_on_the_screen(qtbot: QtBot) -> None:
    content, label = labelled("short")
    window = QWidget()
    QVBoxLayout(window).addWidget(FittingArea(content, fits_text=True))
    qtbot.addWidget(window)
    room = window.screen().availableGeometry()
    window.resize(300, 100)
    window.show()
    window.move(room.left() + 50, room.bottom() - 150)
    qtbot.wait(1)
    place = window.pos()
    label.setText("some words that wrap " * 30)
    qtbot.waitUntil(lambda: window.height() > 150)
    qtbot.waitUntil(lambda: room.contains(window.frameGeometry()))
    assert window.x() == place.x()
    window.move(room.left() + 50, room.bottom() - 50)
    label.setText("short")
    qtbot.wait(50)
    assert window.y() == room.bottom() - 50, "the user put it there"
