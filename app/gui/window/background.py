"""The window in the background: tray icon, closing into the tray, starting minimised, coming back, quitting.

In: the choices of the tray's menu, later starts of the program, the close events of the window. Out: the
window shown, hidden or closed for good. GUI thread.
"""

from __future__ import annotations

import os

from PySide6.QtCore import QObject, Qt, QTimer, Signal
from PySide6.QtWidgets import QApplication, QMainWindow, QWidget

from app.gui.common.icons import Icons
from app.gui.window.control_bar import ControlBar
from app.gui.window.later_starts import LaterStarts
from app.gui.window.state_badge import StateBadge
from app.gui.window.tray import Tray
from app.instance import Instance, Knock

TRAY_CHECK_MS = 2_000
_TRAY_MISSED = 3
"""Checks without a tray after which a hidden window comes back: a panel may just restart."""


class Background(QObject):
    """Without a tray the window closes and minimises as any other. `compact` is the small window that may be
    shown in its place.

    Signals:
        tray_lost: the window was hidden in a tray that is gone, and is shown again.
    """

    tray_lost = Signal()

    def __init__(
        self, window: QMainWindow, compact: QWidget, controls: ControlBar, badge: StateBadge, icons: Icons
    ) -> None:
        super().__init__(window)
        self._window, self._compact, self._controls = window, compact, controls
        self._quits = self._is_closed = False
        self._later_starts: LaterStarts | None = None
        self._missed = 0
        self._watch = QTimer(self)
        self._watch.setInterval(TRAY_CHECK_MS)
        self._watch.timeout.connect(self.check_tray)
        self.tray = Tray(badge, icons, window) if Tray.is_available() else None
        if self.tray is None:
            return
        self._watch.start()
        tray = self.tray
        tray.window_toggled.connect(self.toggle_window)
        tray.run_toggled.connect(controls.toggle)
        tray.muted.connect(controls.mute_button.setChecked)
        tray.interruption_blocked.connect(controls.interruption_button.setChecked)
        tray.quit_wanted.connect(self.quit)
        badge.changed.connect(self._follow)
        controls.mute_button.toggled.connect(self._follow)
        controls.interruption_button.toggled.connect(self._follow)
        self._follow()
        tray.show()

    def show_window(self, *, is_minimised: bool) -> None:
        """Show the window for the first time; minimised means in the tray where there is one."""
        if not is_minimised:
            self._window.show()
        elif self.tray is None:
            self._window.showMinimized()

    def toggle_window(self) -> None:
        """Hide the window, or bring it to the front."""
        window = self._window
        if window.isVisible() and not window.isMinimized():
            window.hide()
            return
        self._raise(window)

    def answer_later_starts(self, instance: Instance) -> None:
        """Come to the front when the program is started again; from now on, until the window closes."""
        self._later_starts = LaterStarts(instance, self)
        self._later_starts.knocked.connect(self._answer_knock)

    def bring_to_front(self, token: str = "") -> None:
        """Show the window, or the compact one, wherever it was: minimised, in the tray, behind others.

        `token` is by what the desktop recognizes that the user asked for it. Qt has a use for it on Wayland;
        on X11 the window manager decides.
        """
        if token and QApplication.platformName().startswith("wayland"):
            os.putenv("XDG_ACTIVATION_TOKEN", token)  # Qt reads and removes it at the activation
        self._raise(self._compact if self._compact.isVisible() else self._window)

    def check_tray(self) -> None:
        """Show a window that was hidden in a tray, once the tray is gone for some seconds."""
        if any(self._is_window(widget) for widget in QApplication.topLevelWidgets()) or Tray.is_available():
            self._missed = 0
            return
        self._missed += 1
        if self._missed >= _TRAY_MISSED:
            self._missed = 0
            self._window.show()
            self.tray_lost.emit()

    def keeps_running(self, *, closes_to_tray: bool) -> bool:
        """Whether a window that is about to close goes into the tray instead; hides it then."""
        if self._quits or not closes_to_tray or self.tray is None or not Tray.is_available():
            return False
        self._window.hide()
        return True

    def quit(self) -> None:
        """Close the window for good; does nothing if it was closed."""
        self._quits = True
        if not self._is_closed:
            self._window.close()

    def close(self) -> None:
        """The window closes for good."""
        self._is_closed = True
        self._watch.stop()
        if self._later_starts is not None:
            self._later_starts.close()
        if self.tray is not None:
            self.tray.close()

    def _answer_knock(self, knock: Knock) -> None:
        if knock.raises:
            self.bring_to_front(knock.token)

    @staticmethod
    def _raise(front: QWidget) -> None:
        front.setWindowState(front.windowState() & ~Qt.WindowState.WindowMinimized)
        front.show()
        front.raise_()
        active = QApplication.activeModalWidget() or front
        active.raise_()
        active.activateWindow()
        QApplication.alert(front)  # where the window manager does not let it come to the front

    @staticmethod
    def _is_window(widget: QWidget) -> bool:
        """Whether the user can reach the program by it."""
        return widget.isVisible() and widget.windowType() in (Qt.WindowType.Window, Qt.WindowType.Dialog)

    def _follow(self) -> None:
        if self.tray is not None:
            controls = self._controls
            self.tray.show_run(controls.is_running)
            self.tray.show_choices(
                is_muted=controls.mute_button.isChecked(),
                blocks_interruption=controls.interruption_button.isChecked(),
            )
