"""The settings page of ways to talk: combinations that cannot be used are refused."""

from __future__ import annotations

import pytest
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from app.gui.common.preferences import Preferences
from app.gui.settings.preference_pages import TalkPage


@pytest.fixture
def page(qtbot: QtBot) -> TalkPage:
    window = QWidget()
    qtbot.addWidget(window)
    QShortcut(QKeySequence("Ctrl+M"), window)
    page = TalkPage(window)
    qtbot.addWidget(page)
    return page


def test_what_is_shown_is_returned(page: TalkPage) -> None:
    chosen = Preferences(input_mode="both", hotkey="Ctrl+Alt+Space")
    page.show_preferences(chosen)
    assert page.edited(Preferences()) == chosen
    assert not page.refusal.isVisibleTo(page)
    page.show_preferences(Preferences())
    assert page.edited(chosen) == Preferences()


@pytest.mark.parametrize(
    ("keys", "reason"), [("A", "would type or edit"), ("Space", "would type"), ("Ctrl+M", "already used")]
)
def test_a_combination_that_cannot_be_used_is_refused(page: TalkPage, keys: str, reason: str) -> None:
    page.show_preferences(Preferences(input_mode="push", hotkey="F9"))
    page.keys.setKeySequence(QKeySequence(keys))
    assert page.hotkey == ""
    assert page.refusal.isVisibleTo(page)
    assert page.refusal.text().startswith(f"{keys} ")
    assert reason in page.refusal.text()
    page.keys.setKeySequence(QKeySequence("Ctrl+Alt+M"))
    assert page.hotkey == "Ctrl+Alt+M"
    assert not page.refusal.isVisibleTo(page)
