"""The keyboard shortcuts of the window. GUI thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from PySide6.QtCore import QObject
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QWidget

from app.gui.shortcuts_dialog import ShortcutsDialog


class Shortcuts(QObject):
    """Runs an action for each of its keys, and lists them."""

    def __init__(
        self, window: QWidget, actions: Mapping[str, Callable[[], object]], talk_keys: Callable[[], list[str]]
    ) -> None:
        """`actions` by key, as QKeySequence reads it; F1 shows the list, with the keys of push-to-talk."""
        super().__init__(window)
        self._window = window
        self._talk_keys = talk_keys
        self.made: dict[str, QShortcut] = {}
        for keys, action in {**actions, "F1": self.show_list}.items():
            self.made[keys] = QShortcut(QKeySequence(keys), window)
            self.made[keys].activated.connect(action)

    def show_list(self) -> None:
        """Show what each key does."""
        dialog = ShortcutsDialog(list(self.made), self._talk_keys(), self._window)
        dialog.exec()
        dialog.deleteLater()
