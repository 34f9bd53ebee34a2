"""The page of the settings dialog about a server that takes the place of a model on this computer.

In: preferences. Out: the edited preferences; address and key are checked while they are edited, without
connecting. GUI thread.
"""

from __future__ import annotations

import dataclasses

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QLineEdit

from app.gui.common.error_texts import in_words
from app.gui.common.plain_text import PlainLabel
from app.gui.common.preferences import Preferences
from app.gui.settings.settings_page import SettingsPage, missing_client
from app.server_address import AddressError, parse_address

_PLACEHOLDER = "wss://voice.example.org"


class ServerPage(SettingsPage):
    """Signals:
    checked: address or key were changed and checked; see `is_usable`.
    """

    checked = Signal()

    def __init__(self) -> None:
        self.is_usable = True
        self.address, self.key, self.voice = QLineEdit(), QLineEdit(), QLineEdit()
        self.note = PlainLabel()
        self.address.setPlaceholderText(_PLACEHOLDER)
        self.key.setEchoMode(QLineEdit.EchoMode.Password)
        self.note.setWordWrap(True)
        super().__init__(
            (
                self.tr("Server &address"),
                self.address,
                self.tr(
                    'A server that speaks OpenAI\'s Realtime protocol, such as "moss-voice serve", '
                    "generates the replies, and no model is loaded. It hears what you say. Leave this "
                    "empty to use the model of the Model page."
                ),
            ),
            (
                self.tr("Server &key"),
                self.key,
                self.tr(
                    "Kept in a file that only you can read. It is sent over an encrypted connection or to "
                    "this computer only."
                ),
            ),
            (
                self.tr("Server &voice"),
                self.voice,
                self.tr('A voice that the server has, such as "marin". Leave this empty for its own choice.'),
            ),
            ("", self.note, ""),
        )
        for line in (self.address, self.key):
            line.textChanged.connect(self._check)

    def show_preferences(self, preferences: Preferences) -> None:
        """Fill the page."""
        self.address.setText(preferences.server)
        self.key.setText(preferences.server_key)
        self.voice.setText(preferences.server_voice)
        self._check()

    def edited(self, preferences: Preferences) -> Preferences:
        """`preferences` with the values of the page."""
        server, key = self._entered()
        voice = self.voice.text().strip()
        return dataclasses.replace(preferences, server=server, server_key=key, server_voice=voice)

    def _entered(self) -> tuple[str, str]:
        """Address and key; a key is that of an address."""
        server = self.address.text().strip()
        return server, self.key.text().strip() if server else ""

    def _check(self) -> None:
        server, key = self._entered()
        text = missing_client()
        has_package = not text
        self.is_usable = True
        for line in (self.address, self.key):  # an address that is there can be removed
            line.setEnabled(has_package or bool(line.text()))
        if server and has_package:
            try:
                warning = parse_address(server, key).warning
                text = "" if warning is None else in_words(warning)
            except AddressError as error:
                text, self.is_usable = in_words(error.problem), False
        self.note.setProperty("role", "small" if self.is_usable else "banner-title")
        self.note.style().polish(self.note)
        self.note.setText(text)
        self.note.setVisible(bool(text))
        self.checked.emit()
