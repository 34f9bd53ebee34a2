"""The keyboard shortcuts, the same in every window of the program. GUI thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from PySide6.QtCore import QObject
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QApplication, QWidget

from app.gui.window.shortcuts_dialog import ShortcutsDialog


class Shortcuts(QObject):
    """Runs an action for each of its keys, and lists them."""

    def __init__(
        self,
        windows: Sequence[QWidget],
        actions: Mapping[str, Callable[[], object]],
        talk_keys: Callable[[], list[str]],
    ) -> None:
        """`actions` by key, as QKeySequence reads it; F1 shows the list, with the keys of push-to-talk. A
        shortcut of Qt works in the window that it was made for, so each of `windows` gets its own; the first
        one is the main window."""
        super().__init__(windows[0])
        self._window = windows[0]
        self._talk_keys = talk_keys
        self._keys = [*actions, "F1"]
        for window in windows:
            for keys, action in {**actions, "F1": self.show_list}.items():
                QShortcut(QKeySequence(keys), window).activated.connect(action)

    def show_list(self) -> None:
        """Show what each key does."""
        window = QApplication.activeWindow() or self._window
        dialog = ShortcutsDialog(self._keys, self._talk_keys(), window)
        dialog.exec()
        dialog.deleteLater()
