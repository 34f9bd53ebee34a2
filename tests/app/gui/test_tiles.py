"""The names of the tiles."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QImage
from pytestqt.qtbot import QtBot

from app.gui.tiles import ElidedLabel


def picture_of(label: ElidedLabel, width: int) -> QImage:
    label.resize(width, 24)
    return label.grab().toImage()


def test_a_name_that_does_not_fit_is_elided(qtbot: QtBot) -> None:
    long, short = ElidedLabel(), ElidedLabel()
    for label, text in ((long, "Confirmed to sound"), (short, "Conf")):
        qtbot.addWidget(label)
        label.setText(text)
    ample = long.fontMetrics().horizontalAdvance(long.text()) + 8
    narrow = ample // 2
    elided = long.fontMetrics().elidedText(long.text(), Qt.TextElideMode.ElideRight, narrow)
    short.setText(elided)
    assert picture_of(long, narrow) == picture_of(short, narrow)
    assert picture_of(long, ample) != picture_of(short, ample)
    assert elided != long.text()
