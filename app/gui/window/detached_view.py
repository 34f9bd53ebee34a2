"""A window of its own for the latency view.

In: the view, geometry. Out: the view in this window; a signal when the user closes it. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import QVBoxLayout, QWidget

from app.gui.common.error_banner import ErrorBanner
from app.gui.common.icons import Icons
from app.gui.common.notice_line import NoticeLine
from app.gui.common.themes import Theme


class DetachedView(QWidget):
    """Holds the view while it is detached. It belongs to the main window and looks like it.

    Signals:
        closed: the user closed the window.
    """

    closed = Signal()

    def __init__(self, window: QWidget, theme: Theme, icons: Icons) -> None:
        super().__init__(window, Qt.WindowType.Window)
        self.banner, self.notice = ErrorBanner(theme, icons), NoticeLine()
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        for widget in (self.banner, self.notice):
            inset = QVBoxLayout()
            inset.setContentsMargins(12, 8, 12, 0)
            inset.addWidget(widget)
            self._layout.addLayout(inset)
        self.resize(900, 760)
        self._retranslate()

    def hold(self, view: QWidget) -> None:
        """Take the view; the splitter that takes it back needs no call."""
        self._layout.addWidget(view, 1)

    def set_theme(self, theme: Theme) -> None:
        """Take the colours of a theme."""
        self.banner.set_theme(theme)

    def closeEvent(self, event: QCloseEvent) -> None:
        """Report it; the view goes back to the main window."""
        super().closeEvent(event)
        self.closed.emit()

    def changeEvent(self, event: QEvent) -> None:
        """Follow a change of the language."""
        if event.type() is QEvent.Type.LanguageChange:
            self._retranslate()
        super().changeEvent(event)

    def _retranslate(self) -> None:
        self.setWindowTitle(self.tr("Latency"))  # Qt adds the name of the program
