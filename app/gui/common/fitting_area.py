"""Scrolls the content of a window that is too large for the screen. GUI thread."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QObject, QSize, Qt, QTimer
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QScrollArea, QStackedWidget, QWidget

_SHARE_OF_SCREEN = 0.9
"""The rest is for the frame of a window and the panels of the desktop."""
_GAP = 14
"""Between the content and a part above or below it."""


class FittingArea(QScrollArea):
    """The content of a window, which can be scrolled only where its least size exceeds the screen: with large
    texts on a small one. `beside` are the parts of the window above and below it, which stay in sight."""

    def __init__(self, content: QWidget, beside: Sequence[QWidget] = (), *, fits_text: bool = False) -> None:
        """`fits_text` gives the content the height of its text at the present width. Qt does not in stacked
        pages: it cuts off text that wraps."""
        super().__init__()
        self._content, self._beside, self._fits_text = content, beside, fits_text
        self._window_height = 0
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
        least += self.size() - self.maximumViewportSize()  # the frame
        room -= QSize(0, taken)
        if least.height() > room.height():
            least += QSize(self.verticalScrollBar().sizeHint().width(), 0)
        return least.boundedTo(room)

    def event(self, event: QEvent) -> bool:
        """Follow the size of the stack of pages to which this one is added."""
        if event.type() is QEvent.Type.ParentChange and isinstance(stack := self.parent(), QStackedWidget):
            stack.installEventFilter(self)
        return super().event(event)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Pass a change of the least size on to the window."""
        if watched is self._content and event.type() is QEvent.Type.LayoutRequest:
            self._fit_height()
            self.updateGeometry()
            QTimer.singleShot(0, self, self._keep_on_screen)  # after the window has grown
        elif watched is self.parent() and event.type() is QEvent.Type.Resize:
            self._fit_height()
        return super().eventFilter(watched, event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Fit the text to the new width."""
        super().resizeEvent(event)
        self._fit_height()

    def _keep_on_screen(self) -> None:
        """The user may leave a window half beyond the edge, but it does not grow beyond it."""
        window, before = self.window(), self._window_height
        self._window_height = window.height()
        if 0 < before < window.height() and not window.isMaximized():
            lift_onto_screen(window)

    def _fit_height(self) -> None:
        if self._fits_text:
            stack, width = self.parent(), self.viewport().width()
            if isinstance(stack, QStackedWidget) and stack.currentWidget() is not self:
                width = stack.width()  # that of a page only when it is shown
            self._content.setMinimumHeight(max(0, self._content.heightForWidth(width)))


def lift_onto_screen(window: QWidget) -> int:
    """Move a window up that reaches beyond the lower edge of the screen; returns by how many pixels."""
    room, frame = window.screen().availableGeometry(), window.frameGeometry()
    lifted = max(0, min(frame.bottom() - room.bottom(), frame.top() - room.top()))
    if lifted:
        window.move(window.x(), window.y() - lifted)
    return lifted
