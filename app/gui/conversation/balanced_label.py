"""A centred label whose wrapped lines have about the same length, so that no single word or character is left
over for the last line. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QWidget

from app.gui.common.plain_text import PlainLabel

_CENTRED = Qt.AlignmentFlag.AlignHCenter | Qt.TextFlag.TextWordWrap


class BalancedLabel(PlainLabel):
    """Wraps its text into as few lines as fit, then narrows them as far as the number of lines allows."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent=parent)
        self.setWordWrap(True)
        self.setAlignment(Qt.AlignmentFlag.AlignHCenter)

    def setText(self, text: str) -> None:
        """Show a text and balance its lines."""
        super().setText(text)
        self._balance()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Balance the lines for the new width."""
        super().resizeEvent(event)
        self._balance()

    def heightForWidth(self, width: int) -> int:
        """Height in pixels at this width.

        NOTE: without the margins, which are those of the present width. Otherwise a layout that compares two
        widths, with and without a scroll bar, changes between them for ever.
        """
        return self._height(width)

    def minimumSizeHint(self) -> QSize:
        """As of a label without margins, which would not get narrower again."""
        margins = self.contentsMargins()
        return super().minimumSizeHint() - QSize(margins.left() + margins.right(), 0)

    def line_width(self) -> int:
        """The least width in pixels that needs no more lines than the width of the label."""
        height = self._height(self.width())
        too_narrow, enough = 0, self.width()
        while enough - too_narrow > 1:
            middle = (too_narrow + enough) // 2
            if self._height(middle) > height:
                too_narrow = middle
            else:
                enough = middle
        return enough

    def _height(self, width: int) -> int:
        return (
            self.fontMetrics().boundingRect(QRect(0, 0, width, 1 << 16), int(_CENTRED), self.text()).height()
        )

    def _balance(self) -> None:
        margin = max(self.width() - self.line_width(), 0) // 2
        self.setContentsMargins(margin, 0, margin, 0)
