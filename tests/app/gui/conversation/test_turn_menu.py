"""What the menu of a turn offers."""

from __future__ import annotations

from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from app.gui.common.icons import Icons
from app.gui.common.themes import Theme
from app.gui.conversation.turn_menu import TurnMenu
from app.gui.conversation.user_bubble import UserBubble


def test_a_turn_that_is_being_spoken_offers_nothing(qtbot: QtBot, theme: Theme, icons: Icons) -> None:
    parent = QWidget()
    qtbot.addWidget(parent)
    bubble = UserBubble("voice", "", "", theme, icons, parent)
    menu = TurnMenu(parent).make(1, bubble, None)
    assert not any(action.isEnabled() for action in menu.actions() if not action.isSeparator())
    bubble.commit(1.2)
    menu = TurnMenu(parent).make(1, bubble, None)
    enabled = [action.text() for action in menu.actions() if action.isEnabled() and not action.isSeparator()]
    assert len(enabled) == 2  # ask again, delete
