"""Scrolls the content of a window that is too large for the screen. GUI thread."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, QSize, Qt
from PySide6.QtWidgets import QFrame, QScrollArea, QWidget

_SHARE_OF_SCREEN = 0.9
"""What is left for the frame of a window and the panels of the desktop."""


class FittingArea(QScrollArea):
    """The content of a window, which can be scrolled only where its least size exceeds the screen: with large
    texts on a small one."""

    def __init__(self, content: QWidget) -> None:
        super().__init__()
        self._content = content
        self.setProperty("role", "plain")
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setWidgetResizable(True)
        self.setWidget(content)
        content.installEventFilter(self)

    def minimumSizeHint(self) -> QSize:
        """That of the content, or of most of the screen."""
        room = self.screen().availableSize() * _SHARE_OF_SCREEN
        return self._content.minimumSizeHint().boundedTo(room)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Pass a change of the least size on to the window."""
        if watched is self._content and event.type() is QEvent.Type.LayoutRequest:
            self.updateGeometry()
        return super().eventFilter(watched, event)
