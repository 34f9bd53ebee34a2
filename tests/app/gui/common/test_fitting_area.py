"""The area that scrolls what is too large for the screen."""

from __future__ import annotations

from PySide6.QtWidgets import QLabel, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from app.gui.common.fitting_area import FittingArea


def test_a_text_that_grows_is_not_cut_off(qtbot: QtBot) -> None:
    content, label = QWidget(), QLabel("short")
    label.setWordWrap(True)
    QVBoxLayout(content).addWidget(label)
    area = FittingArea(content)
    qtbot.addWidget(area)
    area.resize(300, 200)
    area.show()
    area.fit_height()
    before = content.minimumHeight()
    label.setText("some words that wrap " * 20)
    qtbot.waitUntil(lambda: content.minimumHeight() > before)
    assert content.height() >= content.heightForWidth(content.width())
    assert area.minimumSizeHint().height() >= content.minimumHeight()
