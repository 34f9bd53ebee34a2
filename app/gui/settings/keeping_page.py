"""The page of the settings about kept conversations: what is kept and where, its size, its deletion."""

from __future__ import annotations

import os
from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFileDialog, QHBoxLayout, QPushButton, QWidget

from app import paths
from app.gui.common.error_texts import in_words
from app.gui.common.plain_text import PlainLabel
from app.gui.common.preferences import Keep, Preferences
from app.gui.common.question import is_confirmed, open_outside, warn
from app.gui.settings.settings_page import FileField, SettingsPage, choice_box
from app.session.conversation_folder import delete_all, list_conversations, size_bytes
from engine_runtime.errors import MossVoiceError


class KeepingPage(SettingsPage):
    """What is kept of conversations on disk.

    Signals:
        checked: the folder was changed and checked; see `is_usable`.
    """

    checked = Signal()

    def __init__(self) -> None:
        self.keep_box = choice_box(
            (
                (self.tr("no"), "nothing"),
                (self.tr("text, decisions and timings"), "text"),
                (self.tr("everything, with the sound"), "sound"),
            )
        )
        self.folder = FileField(
            self.tr("Folder of the conversations"), str(paths.conversations_dir()), self._browse
        )
        self.total = PlainLabel()
        self.open_button, self.delete_button = QPushButton(), QPushButton()
        buttons = QWidget()
        row = QHBoxLayout(buttons)
        row.setContentsMargins(0, 0, 0, 0)
        row.addWidget(self.open_button)
        row.addWidget(self.delete_button)
        row.addStretch(1)
        super().__init__(
            (
                self.tr("&Keep conversations"),
                self.keep_box,
                self.tr(
                    "Off by default. Kept conversations continue after a restart and are listed under "
                    "Conversations. Sound is recorded in stereo, even while nobody speaks. Only your "
                    "user account can read the files, and none of them leaves this computer."
                ),
            ),
            (
                self.tr("&Folder"),
                self.folder,
                self.tr("Conversations that are in another folder stay there."),
            ),
            (self.tr("On disk"), self.total, ""),
            ("", buttons, ""),
        )
        self.bind(keep=self.keep_box, conversations=self.folder)
        self._is_forbidden = False
        self.folder.changed.connect(self._check_folder)
        self.open_button.setText(self.tr("Open the folder"))
        self.delete_button.setText(self.tr("Delete all conversations …"))
        self.open_button.clicked.connect(self._open)
        self.delete_button.clicked.connect(self._delete)
        self.show_size()

    @property
    def is_usable(self) -> bool:
        """Whether conversations can be kept in the folder."""
        return self.folder.is_usable

    @property
    def _root(self) -> Path:
        return Preferences(conversations=self.folder.path).conversations_dir()

    @property
    def keep(self) -> Keep:
        """What was chosen."""
        chosen: Keep = self.keep_box.currentData()
        return chosen

    def forbid_keeping(self) -> None:
        """For a second window, which leaves the conversations to the first."""
        self._is_forbidden = True
        self.keep_box.setEnabled(False)
        self.folder.setEnabled(False)
        self.show_size()

    def show_size(self) -> None:
        """Show how many conversations there are, and how large they are."""
        root = self._root
        count = len(list_conversations(root))
        text = self.tr("%1 kept, %2").replace("%1", str(count))
        self.total.setText(text.replace("%2", self.locale().formattedDataSize(size_bytes(root))))
        self.open_button.setEnabled(root.is_dir())
        self.delete_button.setEnabled(size_bytes(root) > 0 and not self._is_forbidden)
        if self._is_forbidden:
            self.total.setText(self.tr("A second window does not keep conversations."))

    def showEvent(self, event: QShowEvent) -> None:
        """Show the current size."""
        self.show_size()
        super().showEvent(event)

    def _open(self) -> None:
        open_outside(self, self.open_button.text(), self._root)

    def _browse(self, start: str) -> str:
        folder = start or str(paths.conversations_dir())
        return QFileDialog.getExistingDirectory(self, self.tr("Folder of the conversations"), folder)

    def _check_folder(self) -> None:
        """Say why the folder cannot be used."""
        text, chosen = "", paths.user_path(self.folder.path)
        # The nearest folder that is there; what is missing below it is made when the first one is kept.
        above = next((place for place in (chosen, *chosen.parents) if os.path.lexists(place)), chosen)
        if not self.folder.path:
            pass
        elif not chosen.is_absolute():
            text = self.tr("Give the complete path of a folder.")
        elif not above.is_dir():
            text = self.tr("%1 is not a folder.").replace("%1", str(above))
        elif not os.access(above, os.W_OK | os.X_OK):
            text = self.tr("You may not write to %1.").replace("%1", str(above))
        self.folder.show_note(text, is_usable=not text)
        self.show_size()
        self.checked.emit()

    def _delete(self) -> None:
        question, consequence = self.tr("Delete all kept conversations?"), self.tr("This cannot be undone.")
        if not is_confirmed(self, question, consequence, self.tr("Delete all")):
            return
        try:
            delete_all(self._root)
        except MossVoiceError as error:
            warn(self, self.delete_button.text(), in_words(error.problem))
        self.show_size()
