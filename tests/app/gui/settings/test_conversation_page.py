"""The settings page of turns and replies: the seed, and the help about the end of a turn."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QLabel
from pytestqt.qtbot import QtBot

from app.dialog import smart_turn
from app.gui.common.preferences import Preferences
from app.gui.settings.preference_pages import ConversationPage


def make(qtbot: QtBot) -> ConversationPage:
    page = ConversationPage()
    qtbot.addWidget(page)
    return page


def test_no_seed_stands_for_that_of_the_bundle(qtbot: QtBot) -> None:
    page = make(qtbot)
    page.show_preferences(Preferences(seed=0))
    assert (page.seed.text(), page.edited(Preferences()).seed) == ("0", 0)
    page.show_preferences(Preferences())
    assert (page.seed.text(), page.edited(Preferences(seed=0)).seed) == ("as the bundle says", None)


def test_without_smart_turn_the_page_says_so(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    def helps(page: ConversationPage) -> str:
        return " ".join(label.text() for label in page.findChildren(QLabel))

    assert "sounds finished" in helps(make(qtbot))
    monkeypatch.setattr(smart_turn, "find_model", lambda package, file: None)
    assert "Smart Turn is not installed" in helps(make(qtbot))
