"""A path field with a browse button, and a line below for a note or an error."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QPushButton, QVBoxLayout, QWidget

from app.gui.common.plain_text import PlainLabel


class FileField(QWidget):
    """`browse` opens a dialog at a path and returns the chosen one, "" for none.

    Signals:
        changed: the path has changed; the receiver validates it and calls `say`.
    """

    changed = Signal()

    def __init__(self, name: str, placeholder: str, browse: Callable[[str], str]) -> None:
        super().__init__()
        self._browse = browse
        self.is_usable = True
        self.line = QLineEdit()
        self.line.setPlaceholderText(placeholder)
        self.line.setAccessibleName(name)
        self.setAccessibleName(name)
        self.setFocusProxy(self.line)
        self.button = QPushButton(self.tr("Browse …"))
        self.note = PlainLabel()
        self.note.setWordWrap(True)
        self.note.setVisible(False)
        self.button.clicked.connect(self._choose)
        self.line.textChanged.connect(self.changed)
        row = QHBoxLayout()
        row.addWidget(self.line, 1)
        row.addWidget(self.button)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.addLayout(row)
        column.addWidget(self.note)

    @property
    def path(self) -> str:
        """The path in the field, "" for none."""
        return self.line.text().strip()

    @path.setter
    def path(self, path: str) -> None:
        self.line.setText(path)

    def say(self, text: str, *, is_usable: bool, is_known: bool = True) -> None:
        """Show a line below the path, "" for none. Until `is_known` an unusable path is no error."""
        self.is_usable = is_usable
        self.note.setProperty("role", "small" if is_usable or not is_known else "banner-title")
        self.note.style().polish(self.note)
        self.note.setText(text)
        self.note.setVisible(bool(text))

    def _choose(self) -> None:
        if chosen := self._browse(self.path):
            self.path = chosen
