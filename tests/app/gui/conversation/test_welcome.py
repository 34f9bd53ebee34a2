"""The first screen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.gui.common.icons import Icons
from app.gui.common.themes import Theme
from app.gui.conversation.welcome import Welcome
from app.gui.window.main_window import MainWindow
from app.session.commands import AskText
from app.session.events import EngineReady, SessionState, StateChanged
from engine_runtime.bundle.card import ModelCard
from tests.doubles.scripted_session import NANO, ScriptedSession

BOTH = ModelCard(("zh", "en"), ("你好。", "Hello."), {"en": "Open conversation.", "zh": "自由对话。"})


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
    window.engine.apply(replace(window.applied.current, server="wss://voice.example.org"))
    window.engine.wanted = window.applied.start_settings()
    session.feed(EngineReady("nano", 0.0, 16_000, 24_000, NANO))
    window.bridge.poll()
    assert "What you say goes to the server wss://voice.example.org." in welcome.text.text()
    assert "stays" not in welcome.text.text()
    assert bundle.text() == "nano · on the server wss://voice.example.org"
    guide = window.settings.open_guide()
    assert guide.text.text().startswith("What you say goes to the server wss://voice.example.org. Choose")
    guide.close()


def test_a_session_that_failed_promises_nothing(welcome: Welcome) -> None:
    welcome.show_card(NANO)
    welcome.show_available(False)
    assert welcome.title.text() == "Not available"
    assert shown(welcome) == []
    assert not any(button.isVisibleTo(welcome) for button in welcome.examples)


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
