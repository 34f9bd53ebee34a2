"""One page of the settings dialog: rows of a name and a field, with a description below the field.

In: preferences. Out: the same, with what was changed on the page. GUI thread.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

from PySide6.QtCore import QCoreApplication, Qt, Signal
from PySide6.QtGui import QKeySequence
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QGridLayout,
    QHBoxLayout,
    QKeySequenceEdit,
    QLabel,
    QLineEdit,
    QPushButton,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

from app.gui.common.error_texts import in_words
from app.gui.common.plain_text import PlainLabel
from app.gui.common.preferences import Preferences
from engine_runtime import installation
from engine_runtime.setting import Setting, settings

_SETTINGS = settings(Preferences)
_FIRST_LINE_PX = 50


class SettingsPage(QWidget):
    """`rows` are names (with their key), fields and hints ("" for none)."""

    def __init__(self, *rows: tuple[str, QWidget, str]) -> None:
        super().__init__()
        self._bound: list[tuple[Setting, QWidget]] = []
        grid = self._grid = QGridLayout(self)  # a form layout would guess how high a hint is that wraps
        grid.setContentsMargins(18, 18, 18, 18)
        grid.setHorizontalSpacing(16)
        grid.setVerticalSpacing(6)
        grid.setColumnStretch(1, 1)
        for name, field, hint in rows:
            row = grid.rowCount()
            label = PlainLabel(name)
            label.setBuddy(field.focusProxy() or field)  # a letter leads to nothing that has a proxy
            # Aligned with the first line of a growing field, or of a list.
            label.setFixedHeight(min(field.sizeHint().height(), _FIRST_LINE_PX))
            field.setAccessibleName(field.accessibleName() or _without_key(name))
            grid.addWidget(label, row, 0, Qt.AlignmentFlag.AlignTop)
            grid.addWidget(field, row, 1)
            if hint:
                note = PlainLabel(hint)
                note.setProperty("role", "small")
                note.setWordWrap(True)
                note.setContentsMargins(0, 0, 0, 6)
                field.setAccessibleDescription(hint)
                grid.addWidget(note, row + 1, 1)
        grid.setRowStretch(grid.rowCount(), 1)

    @property
    def label_width(self) -> int:
        """The least width of the names."""
        grid = self._grid
        places = (grid.itemAtPosition(row, 0) for row in range(grid.rowCount()))
        return max((place.sizeHint().width() for place in places if place is not None), default=0)

    def widen_labels(self, width: int) -> None:
        """Give the names more width, as those of another page have."""
        self._grid.setColumnMinimumWidth(0, width)

    def bind(self, **fields: QWidget) -> None:
        """Preferences by name, each with the field that shows and edits it."""
        self._bound += [(_SETTINGS[name], field) for name, field in fields.items()]

    def show_preferences(self, preferences: Preferences) -> None:
        """Fill the page."""
        for known, field in self._bound:
            _show(field, getattr(preferences, known.name))

    def edited(self, preferences: Preferences) -> Preferences:
        """`preferences` with the values of the page."""
        values = {known.name: _value(field, known) for known, field in self._bound}
        return dataclasses.replace(preferences, **values)


def _without_key(name: str) -> str:
    """The name of a row without the letter that leads to it: "&Seed", or in Chinese in brackets."""
    return re.sub(r"\(&.\)|&", "", name)


def one_below_another(*pages: SettingsPage) -> QWidget:
    """Pages that share a tab, with their fields in one column."""
    whole = QWidget()
    column = QVBoxLayout(whole)
    column.setContentsMargins(0, 0, 0, 0)
    column.setSpacing(0)
    for page in pages:
        page.widen_labels(max(other.label_width for other in pages))
        column.addWidget(page)
    column.addStretch(1)
    return whole


def missing_client() -> str:
    """Why neither a server nor another Python can be used, and what to do; "" if the client is installed."""
    if find_spec("websockets") is not None:
        return ""
    text = QCoreApplication.translate("SettingsPage", "This needs the package websockets.")
    return f"{text} {in_words(installation.add('client'))}"


def keep_line(label: QLabel) -> None:
    """Reserve a line for a text that appears later, so that the page does not jump."""
    policy = label.sizePolicy()
    policy.setRetainSizeWhenHidden(True)
    label.setSizePolicy(policy)
    label.setMinimumHeight(label.fontMetrics().lineSpacing())
    label.hide()


def choice_box(choices: Iterable[tuple[str, object]]) -> QComboBox:
    """A box of choices, each with its name and its value."""
    box = QComboBox()
    for name, value in choices:
        box.addItem(name, value)
    return box


def choose(box: QComboBox, value: object) -> None:
    """Select a value; one that is not offered selects the first."""
    box.setCurrentIndex(max(0, box.findData(value)))


def spin_box(name: str, *, step: int = 1, suffix: str = "", special: str = "") -> QSpinBox:
    """A field for a preference that is a number; `special` is what it shows for None, at its lowest value."""
    known = _SETTINGS[name]
    low, high = int(known.least or 0), int(known.most or 0)
    box = QSpinBox()
    box.setRange(low - known.is_optional, high)
    box.setSingleStep(step)
    box.setSuffix(suffix)
    box.setSpecialValueText(special)
    return box


def _show(field: QWidget, value: Any) -> None:
    match field:
        case QComboBox():
            choose(field, value)
        case QCheckBox():
            field.setChecked(value)
        case QSpinBox():
            field.setValue(field.minimum() if value is None else value)
        case QLineEdit():
            field.setText(value)
        case QKeySequenceEdit():
            field.setKeySequence(QKeySequence.fromString(value))
        case FileField():
            field.path = value
        case _:
            raise TypeError(f"no preference is shown by a {type(field).__name__}")


def _value(field: QWidget, known: Setting) -> Any:
    match field:
        case QComboBox():
            chosen = field.currentData()  # which may be the text of an Enum
            return next((choice for choice in known.choices if choice == chosen), chosen)
        case QCheckBox():
            return field.isChecked()
        case QSpinBox():
            number = field.value()
            return None if known.is_optional and number == field.minimum() else number
        case QLineEdit():
            return field.text().strip()
        case QKeySequenceEdit():
            return field.keySequence().toString(QKeySequence.SequenceFormat.PortableText)
        case FileField():
            return field.path
    raise TypeError(f"no preference is edited by a {type(field).__name__}")


def size_in_words(size: float) -> str:
    """A size in MB or GB."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


class FileField(QWidget):
    """`browse` opens a dialog at a path and returns the chosen one, "" for none.

    Signals:
        changed: the path has changed; the receiver validates it and calls `show_note`.
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

    def show_note(self, text: str, *, is_usable: bool, is_known: bool = True) -> None:
        """Show a line below the path, "" for none. Until `is_known` an unusable path is no error."""
        self.is_usable = is_usable
        self.note.setProperty("role", "small" if is_usable or not is_known else "banner-title")
        self.note.style().polish(self.note)
        self.note.setText(text)
        self.note.setVisible(bool(text))

    def _choose(self) -> None:
        if chosen := self._browse(self.path):
            self.path = chosen
