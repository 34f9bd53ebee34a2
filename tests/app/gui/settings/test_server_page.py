"""The settings page of the server: what is entered is returned, and what cannot be used is said."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QDialogButtonBox, QLineEdit
from pytestqt.qtbot import QtBot

from app.gui.common.preferences import Preferences
from app.gui.settings import settings_page
from app.gui.settings.server_page import ServerPage
from app.gui.settings.settings_dialog import SettingsDialog


def make(qtbot: QtBot, preferences: Preferences | None = None) -> ServerPage:
    page = ServerPage()
    qtbot.addWidget(page)
    page.show_preferences(preferences or Preferences())
    return page


def test_address_key_and_voice_are_returned(qtbot: QtBot) -> None:
    page = make(qtbot, Preferences(server="wss://a.example.org", server_key="old", server_voice="marin"))
    assert page.voice.text() == "marin"
    page.voice.setText("cedar ")
    assert page.edited(Preferences()).server_voice == "cedar"
    assert page.key.echoMode() is QLineEdit.EchoMode.Password
    page.key.setText(" new ")
    edited = page.edited(Preferences(volume=50))
    assert (edited.server, edited.server_key, edited.volume) == ("wss://a.example.org", "new", 50)


def test_a_key_goes_with_its_address(qtbot: QtBot) -> None:
    page = make(qtbot, Preferences(server="wss://a.example.org", server_key="old"))
    page.address.clear()
    assert page.edited(Preferences()) == Preferences()
    assert page.is_usable


@pytest.mark.parametrize(
    ("address", "key", "reason"),
    [
        ("a b", "", "is not a valid server address"),
        ("ws://u:p@a.example.org", "", "contains a password"),
        ("ws://a.example.org", "key", "without encryption"),
    ],
)
@pytest.mark.slow
def test_what_cannot_be_used_is_not_accepted(qtbot: QtBot, address: str, key: str, reason: str) -> None:
    dialog = SettingsDialog(Preferences(), None)
    qtbot.addWidget(dialog)
    accept = dialog.buttons.button(QDialogButtonBox.StandardButton.Ok)
    dialog.server.address.setText(address)
    dialog.server.key.setText(key)
    assert reason in dialog.server.note.text()
    assert not accept.isEnabled()
    dialog.server.key.clear()
    dialog.server.address.setText("ws://127.0.0.1:8000")
    assert dialog.server.note.text() == ""
    assert accept.isEnabled()


def test_without_the_client_nothing_is_entered(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_page, "find_spec", lambda name: None)
    page = make(qtbot)
    assert not page.address.isEnabled()
    assert "websockets" in page.note.text()
    assert "[client]" in page.note.text()


def test_without_the_client_an_address_can_be_removed(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_page, "find_spec", lambda name: None)
    page = make(qtbot, Preferences(server="ws://voice.example.org:8000"))
    assert page.address.isEnabled()
    assert "websockets" in page.note.text()
    page.address.clear()
    assert not page.address.isEnabled()
    assert page.edited(Preferences()).server == ""


def test_a_server_without_tls_is_warned_of(qtbot: QtBot) -> None:
    page = ServerPage()
    qtbot.addWidget(page)
    page.address.setText("ws://voice.example.org:8000")
    assert "without encryption" in page.note.text()
    assert page.is_usable
    for address in ("wss://voice.example.org", "ws://127.0.0.1:8000"):
        page.address.setText(address)
        assert page.note.text() == ""
