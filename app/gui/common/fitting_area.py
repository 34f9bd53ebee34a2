"""Scrolls the content of a window that is too large for the screen. GUI thread."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QObject, QSize, Qt
from PySide6.QtWidgets import QFrame, QScrollArea, QWidget

_SHARE_OF_SCREEN = 0.9
"""The rest is for the frame of a window and the panels of the desktop."""
_GAP = 14
"""Between the content and a part above or below it."""


class FittingArea(QScrollArea):
    """The content of a window, which can be scrolled only where its least size exceeds the screen: with large
    texts on a small one. `beside` are the parts of the window above and below it, which stay in sight."""

    def __init__(self, content: QWidget, beside: Sequence[QWidget] = ()) -> None:
        super().__init__()
        self._content, self._beside = content, beside
        self._fits_height = False
        content.setProperty("role", content.property("role") or "plain")  # of the colour of what is behind
        self.setProperty("role", "plain")
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setWidgetResizable(True)
        self.setWidget(content)
        content.installEventFilter(self)

    def minimumSizeHint(self) -> QSize:
        """That of the content, or of most of the screen."""
        room = self.screen().availableSize() * _SHARE_OF_SCREEN
        taken = sum(part.sizeHint().height() + _GAP for part in self._beside if not part.isHidden())
        least = self._content.minimumSizeHint().expandedTo(self._content.minimumSize())
        room -= QSize(0, taken)
        if least.height() > room.height():
            least += QSize(self.verticalScrollBar().sizeHint().width(), 0)
        return least.boundedTo(room)

    def fit_height(self) -> None:
        """Give the content the height of its text at the present width, from now on also when the text
        changes. Qt does not in stacked pages: it cuts off text that wraps."""
        self._fits_height = True
        self._content.setMinimumHeight(max(0, self._content.heightForWidth(self.viewport().width())))

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Pass a change of the least size on to the window."""
        if watched is self._content and event.type() is QEvent.Type.LayoutRequest:
            if self._fits_height:
                self.fit_height()
            self.updateGeometry()
        return super().eventFilter(watched, event)
