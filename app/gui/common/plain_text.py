"""Labels and tooltips that show a text as it is, whoever wrote it.

Qt takes a text that looks like HTML for HTML: a name from a server or a bundle could then load a file, such
as `<img src="/dev/zero">`, which ends the process. So no other module makes a QLabel or sets a tooltip
(tests/test_architecture.py). In: texts of any origin and length. GUI thread.
"""

from __future__ import annotations

import html
import unicodedata
from typing import Protocol

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QLabel, QStyleOption, QWidget

LONGEST = 2_000
"""Default limit of the characters that are shown: Qt takes long to lay out more."""
_KEPT = "\n\t"
_DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Embeddings, overrides and isolates of the writing direction: they would also turn the words around them."""


class _HasToolTip(Protocol):
    """A widget, an action or the tray icon."""

    def setToolTip(self, text: str, /) -> None: ...


def clean(text: str, most: int = LONGEST) -> str:
    """`text` without control characters other than line breaks and tabs, and without changes of the writing
    direction; no longer than `most` characters, with an ellipsis where it was cut."""
    if len(text) > most:
        text = text[: most - 1] + "…"
    if text.isprintable() and text.isascii():
        return text
    return "".join(filter(_is_shown, text))


def literal(text: str) -> str:
    """`text` for a widget of Qt that detects markup (a tooltip, a message box): shown as it is there."""
    text = clean(text)
    if "<" not in text:
        return text
    return "<qt>" + html.escape(text).replace("\n", "<br>") + "</qt>"


def set_tip(widget: _HasToolTip, text: str) -> None:
    """Show `text` as the tooltip."""
    widget.setToolTip(literal(text))


def set_markup_tip(widget: _HasToolTip, markup: str) -> None:
    """Show markup as the tooltip. Only for the program's own texts and for numbers."""
    widget.setToolTip(markup)


class PlainLabel(QLabel):
    """Shows its text as it is.

    Attributes:
        most: characters that are shown of it.
    """

    most = LONGEST

    def __init__(self, text: str = "", parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setText(text)

    def setText(self, text: str) -> None:
        """Show this text."""
        super().setText(clean(text, self.most))


class ElidedLabel(PlainLabel):
    """One line, elided where it does not fit: it never makes its window wider."""

    def setText(self, text: str) -> None:
        """Show this text in one line."""
        super().setText(" ".join(text.splitlines()))

    def minimumSizeHint(self) -> QSize:
        """As high as a line, of any width."""
        return QSize(1, super().minimumSizeHint().height())

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw the text as Qt does, elided."""
        option, box = QStyleOption(), self.contentsRect()
        option.initFrom(self)
        text = self.fontMetrics().elidedText(self.text(), Qt.TextElideMode.ElideRight, box.width())
        self.style().drawItemText(
            QPainter(self),
            box,
            self.alignment(),
            option.palette,
            self.isEnabled(),
            text,
            self.foregroundRole(),
        )


class MarkupLabel(QLabel):
    """Shows rich text. Only for the program's own texts and for numbers."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setTextFormat(Qt.TextFormat.RichText)


def _is_shown(character: str) -> bool:
    is_control = unicodedata.category(character) in ("Cc", "Cs")
    return character in _KEPT or not (is_control or character in _DIRECTIONS)
