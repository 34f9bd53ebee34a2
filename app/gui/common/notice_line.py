"""One line for notices that need no action, for example a microphone that is back; hidden after a while.

In: the text. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import QTimer, Signal
from PySide6.QtWidgets import QWidget

from app.gui.common.plain_text import PlainLabel

SHOWN_MS = 10_000


class NoticeLine(PlainLabel):
    """Hidden until `show_notice`, and again `SHOWN_MS` after the latest one.

    Signals:
        noticed: a notice is shown; its text.
    """

    noticed = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent=parent)
        self.setProperty("role", "muted")
        self.setWordWrap(True)
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self.hide)
        self.hide()

    def show_notice(self, text: str) -> None:
        """Show `text` in place of an earlier one."""
        self.setText(text)
        self.setAccessibleName(text)
        self.show()
        self._timer.start(SHOWN_MS)
        self.noticed.emit(text)
