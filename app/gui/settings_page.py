"""One page of the settings dialog: rows of a name and a field, with a description below the field."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout, QLabel, QWidget


class SettingsPage(QWidget):
    """`rows` are names (with their key), fields and hints ("" for none)."""

    def __init__(self, *rows: tuple[str, QWidget, str]) -> None:
        super().__init__()
        grid = QGridLayout(self)  # a form layout would guess how high a hint is that wraps
        grid.setContentsMargins(18, 18, 18, 18)
        grid.setHorizontalSpacing(16)
        grid.setVerticalSpacing(6)
        grid.setColumnStretch(1, 1)
        for name, field, hint in rows:
            row = grid.rowCount()
            label = QLabel(name)
            label.setBuddy(field)
            label.setFixedHeight(field.sizeHint().height())  # aligned with the first line of a growing field
            field.setAccessibleName(field.accessibleName() or name.replace("&", ""))
            grid.addWidget(label, row, 0, Qt.AlignmentFlag.AlignTop)
            grid.addWidget(field, row, 1)
            if hint:
                note = QLabel(hint)
                note.setProperty("role", "small")
                note.setWordWrap(True)
                note.setContentsMargins(0, 0, 0, 6)
                field.setAccessibleDescription(hint)
                grid.addWidget(note, row + 1, 1)
        grid.setRowStretch(grid.rowCount(), 1)
