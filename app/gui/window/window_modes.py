"""How much of the window is shown: with or without the latency view, which can be detached into a window of
its own, the compact window in its place, or the presenter over all of it.

GUI thread.
"""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QByteArray, QEvent, QObject, Qt, Signal
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import QMainWindow, QSplitter, QVBoxLayout, QWidget

from app.gui.common.icons import Icons
from app.gui.common.notices import ErrorBanner, NoticeLine
from app.gui.common.themes import Theme
from app.gui.window.compact_window import CompactWindow
from app.gui.window.presenter import Presenter

NARROWEST = 380
"""Width of the latency view at which its texts are legible; dragged to less than half of it, it is hidden."""


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

    def take_view(self, view: QWidget) -> None:
        """Take the view; to take it back, the splitter needs no call."""
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


class WindowModes(QObject):
    """The latency view keeps its width while it is hidden.

    Signals:
        panel_toggled: the latency view was shown or hidden (bool).
        panel_detached: it was put into a window of its own, or back (bool).
    """

    panel_toggled = Signal(bool)
    panel_detached = Signal(bool)

    def __init__(
        self,
        window: QMainWindow,
        splitter: QSplitter,
        panel: QWidget,
        compact: CompactWindow,
        detached: DetachedView,
        make_presenter: Callable[[], Presenter],
    ) -> None:
        super().__init__(window)
        self._window, self._splitter, self._panel = window, splitter, panel
        self.compact = compact
        self.detached = detached
        self._make_presenter = make_presenter
        self.presenter: Presenter | None = None
        """Made when it is shown for the first time."""
        self.is_detached = False
        """Whether the latency view is in a window of its own."""
        splitter.setCollapsible(splitter.indexOf(panel), True)
        self._sizes = splitter.sizes()
        self._handle = splitter.saveState()
        splitter.splitterMoved.connect(self._follow_handle)
        self.detached.closed.connect(lambda: self.detach_panel(False))
        compact.left.connect(self.show_large)
        window.installEventFilter(self)

    @property
    def shows_panel(self) -> bool:
        """Whether the latency view is shown."""
        return not self._panel.isHidden()

    @property
    def splitter_state(self) -> QByteArray:
        """Where the handle of the splitter is, or was before the latency view was hidden."""
        is_there = self.shows_panel and not self.is_detached
        return self._splitter.saveState() if is_there else self._handle

    def show_panel(self, on: bool) -> None:
        """Show or hide the latency view."""
        if on != self.shows_panel:
            self._handle = self.splitter_state
            self._panel.setVisible(on)
            self._show_detached()
            self.panel_toggled.emit(on)

    def toggle_panel(self) -> None:
        """Show the latency view if it is hidden, else hide it. From the compact window it is shown."""
        is_wanted = not self.shows_panel or self.compact.isVisible()
        self.show_large()
        self.show_panel(is_wanted)

    def detach_panel(self, on: bool) -> None:
        """Show the latency view in a window of its own, or in the main window again."""
        if on == self.is_detached:
            return
        self._handle = self.splitter_state
        self.is_detached = on
        if on:
            self.detached.take_view(self._panel)
        else:
            self._splitter.addWidget(self._panel)
            self._restore_handle(self._handle)
        self.show_panel(True)
        self._show_detached()
        self.panel_detached.emit(on)

    def toggle_detached(self) -> None:
        """Detach the latency view, or put it back."""
        self.detach_panel(not self.is_detached)

    def enter_compact(self) -> None:
        """The compact window in place of the large one."""
        self.compact.show()
        self._window.hide()

    def toggle_compact(self) -> None:
        """The compact window in place of the large one, or back."""
        if self.compact.isVisible():
            self.show_large()
        else:
            self.enter_compact()

    @property
    def is_presenting(self) -> bool:
        """Whether the presenter covers the screen."""
        return self.presenter is not None and self.presenter.isVisible()

    def present(self, on: bool) -> None:
        """Cover the screen with the presenter, or show the windows behind it again."""
        if on == self.is_presenting:
            return
        if self.presenter is None:
            self.presenter = self._make_presenter()
            self.presenter.left.connect(lambda: self.present(False))
        if on:
            behind = self.compact if self.compact.isVisible() else self._window
            self.presenter.setGeometry(behind.screen().geometry())
            self.presenter.showFullScreen()
            self.presenter.activateWindow()
        else:
            self.presenter.hide()
            (self.compact if self.compact.isVisible() else self._window).activateWindow()

    def toggle_presenter(self) -> None:
        """Begin or end a presentation."""
        self.present(not self.is_presenting)

    def show_large(self) -> None:
        """The large window again, with the focus."""
        self._window.show()
        self._window.activateWindow()

    def restore(
        self, handle: QByteArray, detached: QByteArray, *, shows_panel: bool, is_detached: bool
    ) -> None:
        """As the window was left; `detached` is the geometry of the other one."""
        self._restore_handle(handle)
        self.detached.restoreGeometry(detached)
        self.detach_panel(is_detached)
        self.show_panel(shows_panel)

    def shut_down(self) -> None:
        """The window closes for good."""
        self.detached.hide()
        self.compact.hide()
        self.compact.deleteLater()
        if self.presenter is not None:
            self.presenter.hide()
            self.presenter.deleteLater()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Hide the compact window whenever the large one is shown; the detached view is shown and hidden with
        it."""
        if watched is self._window and not event.spontaneous():
            if event.type() is QEvent.Type.Show:
                self.compact.hide()
            if event.type() in (QEvent.Type.Show, QEvent.Type.Hide):
                self._show_detached()
        return False

    def _show_detached(self) -> None:
        self.detached.setVisible(self.is_detached and self.shows_panel and self._window.isVisible())

    def _restore_handle(self, handle: QByteArray) -> None:
        self._splitter.restoreState(handle)
        self._splitter.setChildrenCollapsible(False)  # both are in the state
        self._splitter.setCollapsible(self._splitter.indexOf(self._panel), True)
        self._sizes = self._splitter.sizes()

    def _follow_handle(self) -> None:
        sizes = self._splitter.sizes()
        if sizes[self._splitter.indexOf(self._panel)]:
            self._sizes = sizes
            return
        self._splitter.setSizes(self._sizes)
        self.show_panel(False)
