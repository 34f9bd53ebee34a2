"""The keyboard shortcuts, the same in every window of the program, and their list. GUI thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QApplication, QDialog, QDialogButtonBox, QGridLayout, QVBoxLayout, QWidget

from app.gui.common.fitting_area import FittingArea
from app.gui.common.plain_text import PlainLabel

_IN_DIALOGS = ("Ctrl++", "Ctrl+-", "Ctrl+0")
_SAME_KEYS = {"Ctrl++": ("Ctrl+=",)}
"""Other keys for the same: plus without Shift."""
_REACHED = "has_shortcuts"


class ShortcutsDialog(QDialog):
    """Shows what each key does; `chosen` are keys of the preferences, with what they do."""

    def __init__(self, keys: list[str], chosen: Mapping[str, str], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle(self.tr("Keyboard shortcuts"))
        content = QWidget()
        grid = QGridLayout(content)
        grid.setContentsMargins(8, 4, 8, 4)
        grid.setHorizontalSpacing(28)
        grid.setVerticalSpacing(8)
        words = self._words()
        for row, (key, word) in enumerate([*chosen.items(), *((key, words[key]) for key in keys)]):
            name = PlainLabel(QKeySequence(key).toString(QKeySequence.SequenceFormat.NativeText))
            name.setProperty("role", "title")
            grid.addWidget(name, row, 0)
            grid.addWidget(PlainLabel(word), row, 1)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        buttons.rejected.connect(self.reject)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(14, 16, 14, 16)
        layout.setSpacing(18)
        area = FittingArea(content, (buttons,))
        area.setProperty("role", "reading")
        area.setFocusPolicy(Qt.FocusPolicy.TabFocus)  # nothing inside takes the keys that scroll it
        area.setAccessibleName(self.windowTitle())
        layout.addWidget(area)
        layout.addWidget(buttons)

    def _words(self) -> dict[str, str]:
        return {
            "Ctrl+Space": self.tr("Start or stop listening"),
            "Ctrl+Up": self.tr("Louder replies"),
            "Ctrl+Down": self.tr("Quieter replies"),
            "Ctrl+M": self.tr("Mute the microphone"),
            "Ctrl+I": self.tr("Keep my voice from interrupting replies"),
            "Esc": self.tr("Stop the reply, or drop the turn"),
            "Ctrl+L": self.tr("Type a question"),
            "Ctrl+N": self.tr("New conversation"),
            "Ctrl+H": self.tr("Conversations"),
            "Ctrl+R": self.tr("Look for sound devices again"),
            "Ctrl+E": self.tr("Export the timings as CSV"),
            "Ctrl+T": self.tr("Switch between light and dark"),
            "Ctrl++": self.tr("Larger texts and plots"),
            "Ctrl+-": self.tr("Smaller texts and plots"),
            "Ctrl+0": self.tr("Usual size of texts and plots"),
            "F9": self.tr("Show or hide the latency view"),
            "Shift+F9": self.tr("Latency view in its own window, or back"),
            "F10": self.tr("Small window, or back"),
            "F11": self.tr("Presentation, or back"),
            "Ctrl+,": self.tr("Settings"),
            "F1": self.tr("This list"),
            "Ctrl+Q": self.tr("Close the window"),
        }


class Shortcuts(QObject):
    """Runs an action for each of its keys, and lists them."""

    def __init__(
        self,
        windows: Sequence[QWidget],
        actions: Mapping[str, Callable[[], object]],
        chosen: Callable[[], Mapping[str, str]],
    ) -> None:
        """`actions` by key, as QKeySequence reads it; F1 shows the list, with the `chosen` keys. A
        shortcut of Qt works in the window that it was made for, so each of `windows` gets its own; the first
        one is the main window. A dialog gets those of the size."""
        super().__init__(windows[0])
        self._actions = {**actions, "F1": self.show_list}
        self._of_dialogs = {key: action for key, action in actions.items() if key in _IN_DIALOGS}
        self._window = windows[0]
        self._chosen = chosen
        self._keys = [*actions, "F1"]
        for window in windows:
            self.add_window(window)
        application = QApplication.instance()
        assert isinstance(application, QApplication)
        application.focusWindowChanged.connect(self._reach_dialog)

    def add_window(self, window: QWidget) -> None:
        """Give another window the same shortcuts."""
        self._add(window, self._actions)

    def _add(self, window: QWidget, actions: Mapping[str, Callable[[], object]]) -> None:
        for key, action in actions.items():
            for keys in (key, *_SAME_KEYS.get(key, ())):
                QShortcut(QKeySequence(keys), window).activated.connect(action)

    def _reach_dialog(self) -> None:
        dialog = QApplication.activeWindow()
        if isinstance(dialog, QDialog) and not dialog.property(_REACHED):
            dialog.setProperty(_REACHED, True)
            self._add(dialog, self._of_dialogs)

    def show_list(self) -> None:
        """Show what each key does."""
        window = QApplication.activeWindow() or self._window
        dialog = ShortcutsDialog(self._keys, self._chosen(), window)
        dialog.exec()
        dialog.deleteLater()
