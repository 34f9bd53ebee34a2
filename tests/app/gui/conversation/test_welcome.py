"""The first screen, with lines of about the same length."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QTextLayout, QTextOption
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.gui.common.icons import Icons
from app.gui.common.themes import Theme
from app.gui.conversation.welcome import BalancedLabel, Welcome
from app.gui.window.main_window import MainWindow
from app.session.commands import AskText
from app.session.events import EngineReady, SessionState, StateChanged
from engine_runtime.bundle.card import ModelCard
from tests.doubles.scripted_session import NANO, ScriptedSession

CHINESE = "按“开始”说话，在下方输入问题，或试试示例。一切都留在这台电脑上。"
ENGLISH = "Press Start and speak, type a question below, or try one of the samples."
BOTH = ModelCard(("zh", "en"), ("你好。", "Hello."), {"en": "Open conversation.", "zh": "自由对话。"})


def _line_widths(label: BalancedLabel, width: float) -> list[float]:
    """The text wrapped at a width in pixels."""
    layout = QTextLayout(label.text(), label.font())
    layout.setTextOption(QTextOption())
    layout.beginLayout()
    widths = []
    while (line := layout.createLine()).isValid():
        line.setLineWidth(width)
        widths.append(line.naturalTextWidth())
    layout.endLayout()
    return widths


@pytest.mark.parametrize("text", [CHINESE, ENGLISH])
def test_the_last_of_two_lines_is_about_as_long_as_the_first(qtbot: QtBot, text: str) -> None:
    label = BalancedLabel()
    qtbot.addWidget(label)
    label.setText(text)
    label.show()
    full = label.fontMetrics().horizontalAdvance(text)
    shortest = 1.0
    for width in range(full * 6 // 10, full, 7):
        label.resize(width, 200)
        first, last = _line_widths(label, label.contentsRect().width())
        assert last > 0.7 * first
        shortest = min(shortest, _line_widths(label, width)[-1] / first)
    assert shortest < 0.5, "without balancing, the last line is short at some width"


def test_a_line_that_fits_stays_one_line(qtbot: QtBot) -> None:
    label = BalancedLabel()
    qtbot.addWidget(label)
    label.setText("short")
    label.resize(400, 50)
    label.show()
    assert len(_line_widths(label, label.contentsRect().width())) == 1


def test_the_height_does_not_depend_on_the_present_width(qtbot: QtBot) -> None:
    """A scroll area that tries two widths would change between them for ever."""
    label, fresh = BalancedLabel(), BalancedLabel()
    for made in (label, fresh):
        qtbot.addWidget(made)
    label.setText(ENGLISH)
    fresh.setText(ENGLISH)
    label.show()
    for present in (180, 260, 345, 500):
        label.resize(present, 200)
        heights = [label.heightForWidth(width) for width in range(150, 520, 10)]
        assert heights == sorted(heights, reverse=True)
        assert heights == [fresh.heightForWidth(width) for width in range(150, 520, 10)]
        assert label.minimumSizeHint().width() == fresh.minimumSizeHint().width()


@pytest.fixture
def welcome(qtbot: QtBot, theme: Theme, icons: Icons) -> Welcome:
    welcome = Welcome(theme, icons)
    qtbot.addWidget(welcome)
    return welcome


def shown(welcome: Welcome) -> list[str]:
    labels = (welcome.summary, welcome.languages)
    return [label.text() for label in labels if label.isVisibleTo(welcome)]


def test_the_card_is_shown_in_the_language_of_the_window(welcome: Welcome) -> None:
    assert shown(welcome) == []
    welcome.show_card(BOTH)
    assert shown(welcome) == ["Open conversation.", "It speaks Chinese and English."]
    welcome.set_language("zh_CN")
    assert shown(welcome)[0] == "自由对话。"
    welcome.show_card(NANO)
    assert shown(welcome) == [
        NANO.summary["zh"],
        "It understands and speaks only English: ask in English.",
    ]
    assert [button.text() for button in welcome.examples] == list(NANO.examples)


def test_a_server_hears_what_is_said(window: MainWindow, session: ScriptedSession) -> None:
    welcome, bundle = window.transcript.welcome, window.header.bundle
    session.feed(EngineReady("nano", 2.4, 16_000, 24_000, NANO))
    window.bridge.poll()
    assert "Everything stays on this computer." in welcome.text.text()
    assert bundle.text() == "nano · loaded in 2.4 s"
    window.engine.apply_edited(replace(window.applied.current, server="wss://voice.example.org"))
    window.engine.wanted = window.applied.start_settings()
    session.feed(EngineReady("nano", 0.0, 16_000, 24_000, NANO))
    window.bridge.poll()
    assert "What you say goes to the server voice.example.org (TLS)." in welcome.text.text()
    assert "stays" not in welcome.text.text()
    assert bundle.text() == "nano · on the server voice.example.org (TLS)"
    assert "goes to the server voice.example.org (TLS)" in window.header.badge.accessibleDescription()
    guide = window.settings.open_guide()
    assert "voice.example.org (TLS)" in guide.text.text()
    guide.close()


def test_a_session_that_failed_promises_nothing(welcome: Welcome) -> None:
    welcome.show_card(NANO)
    welcome.show_available(False)
    assert welcome.title.text() == "Not available"
    assert shown(welcome) == []
    assert not any(button.isVisibleTo(welcome) for button in welcome.examples)


@pytest.mark.slow
def test_it_is_read_from_its_top(window: MainWindow, session: ScriptedSession) -> None:
    window.resize(1024, 600)
    session.feed(EngineReady("nano", 2.4, 16_000, 24_000, NANO), StateChanged(SessionState.STOPPED))
    window.bridge.poll()
    QApplication.processEvents()
    bar = window.transcript.verticalScrollBar()
    assert (bar.value(), bar.maximum() > 0) == (0, True)


@pytest.mark.slow
def test_an_example_is_asked_with_a_click(qtbot: QtBot, window: MainWindow, session: ScriptedSession) -> None:
    session.feed(EngineReady("nano", 2.4, 16_000, 24_000, NANO))
    window.bridge.poll()
    button = window.transcript.welcome.examples[1]
    assert not button.isEnabled()  # until the session answers
    session.feed(StateChanged(SessionState.STOPPED))
    window.bridge.poll()
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert session.commands[-1] == AskText("What is three plus four?")


@pytest.mark.slow
def test_a_chinese_window_says_that_nano_speaks_english_only(
    window: MainWindow, session: ScriptedSession
) -> None:
    session.feed(EngineReady("nano", 2.4, 16_000, 24_000, NANO))
    window.bridge.poll()
    window.toggle_language()
    text = window.transcript.welcome.languages.text()
    window.toggle_language()
    assert "只" in text
    assert "英语" in text
