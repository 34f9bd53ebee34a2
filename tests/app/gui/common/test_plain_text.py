"""Texts of any origin are shown as they are: no markup, no control characters, no endless line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QApplication, QLabel, QMessageBox, QWidget
from pytestqt.qtbot import QtBot

from app.gui.common.plain_text import LONGEST, ElidedLabel, PlainLabel, clean, literal, set_tip
from app.gui.common.question import is_confirmed, warn
from app.gui.settings.model_list import ModelRow
from app.gui.window.main_window import MainWindow
from app.installed_models import Model
from app.session.events import (
    DeviceNoticed,
    DevicesChanged,
    EngineReady,
    ErrorRaised,
    ReplyFinished,
    ReplyTextDelta,
    SessionState,
    StateChanged,
    TurnCommitted,
    TurnOpened,
)
from engine_runtime.bundle.card import ModelCard
from engine_runtime.errors import Problem
from engine_runtime.types import Modality
from tests.doubles.scripted_session import ScriptedSession

HOSTILE = (
    '<img src="/dev/null">',
    '<a href="file:///etc/passwd">here</a>',
    "<b>bold</b>\nand <table><tr><td>more",
    "\u202eevil\u202c \x00\x07\x1b[31m \ud800",
    "x" * 1_000_000,
)
TURNING = set("\x00\x07\x1b\u202e\u202c\ud800")


def picture_of(label: ElidedLabel, width: int) -> QImage:
    label.resize(width, 24)
    return label.grab().toImage()


def test_a_text_that_does_not_fit_is_elided(qtbot: QtBot) -> None:
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
    assert long.minimumSizeHint().width() <= 1
    long.setText("two\nlines")
    assert long.text() == "two lines"


def test_a_text_is_cleaned_and_cut() -> None:
    assert clean("plain <b>text</b>\n\tof two lines: 你好") == "plain <b>text</b>\n\tof two lines: 你好"
    assert clean("\u202eabc\u2066 \x00\x9b\x7fdef\ud800") == "abc def"
    assert clean("abcdef", 4) == "abc…"
    assert len(clean("x" * 1_000_000)) == LONGEST


@pytest.mark.parametrize("text", HOSTILE)
def test_what_detects_markup_gets_none(qtbot: QtBot, text: str) -> None:
    button = QWidget()
    qtbot.addWidget(button)
    set_tip(button, text)
    tip = button.toolTip()
    assert tip == literal(text)
    assert "<" not in tip or (tip.startswith("<qt>") and "<" not in tip[4:-5].replace("<br>", ""))
    assert len(tip) <= 6 * LONGEST


def labels_of_all_windows() -> Iterator[QLabel]:
    for top in QApplication.topLevelWidgets():
        yield from top.findChildren(QLabel)


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE)
def test_no_label_and_no_tooltip_takes_markup(
    qtbot: QtBot, window: MainWindow, session: ScriptedSession, tmp_path: Path, text: str
) -> None:
    width = window.minimumSizeHint().width()
    model = ModelCard(("en", text[:500]), (text[:500],), {"en": text[:500]})
    session.feed(
        EngineReady(text, 0.1, 16_000, 24_000, model),
        StateChanged(SessionState.LISTENING),
        DevicesChanged((text,), (text,), text, text, {text: text}),
        DeviceNoticed(Problem("{text}", text=text)),
        ErrorRaised(Problem("{text}", "{text}", text=text)),
        TurnOpened(1, "text", text),
        TurnCommitted(1, 0.0),
        ReplyTextDelta(1, text, False),
        ReplyFinished(1, Modality.TEXT, 0.0, text, 1, 1, "stop"),
    )
    window.bridge.poll()
    window.engine.loading.emit(text)
    row = ModelRow(Model(text, tmp_path, 1, text, problem=Problem("{text}", text=text)))
    qtbot.addWidget(row)
    row.show_model(row.model, None, is_in_use=False)
    row.show_advice(text)
    window.modes.compact.show()
    for shown in (window, window.modes.compact, window.loading, row):
        shown.grab()
    found = list(labels_of_all_windows())
    assert len(found) > 40
    for label in found:
        is_plain = label.textFormat() is Qt.TextFormat.PlainText
        assert is_plain or clean(text)[:20] not in label.text()
        assert not TURNING & set(label.text())
        assert len(label.text()) <= 10 * LONGEST
    for widget in window.findChildren(QWidget):
        tip = widget.toolTip()
        assert not ("<" in text and text[:20] in tip)
    assert window.header.bundle.text().startswith(clean(text)[:10].splitlines()[0])
    assert window.minimumSizeHint().width() <= width + 60


@pytest.mark.parametrize("text", HOSTILE[:3])
def test_message_boxes_show_text_as_it_is(host: QWidget, text: str) -> None:
    seen: list[str] = []

    def look() -> None:
        box = QApplication.activeModalWidget()
        assert isinstance(box, QMessageBox)
        seen.extend((box.text(), box.informativeText()))
        box.reject()

    QTimer.singleShot(0, look)
    assert not is_confirmed(host, text, text, "Forget")
    QTimer.singleShot(0, look)
    warn(host, text, text)
    assert seen == [literal(text), literal(text), literal(text), ""]
    assert PlainLabel(text).text() == clean(text)
