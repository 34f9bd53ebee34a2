"""The window in the background: tray icon, closing into the tray, starting minimised, quitting.

In: the choices of the tray's menu, and the close events of the window. Out: the window shown, hidden or
closed for good. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QMainWindow

from app.gui.control_bar import ControlBar
from app.gui.icons import Icons
from app.gui.state_badge import StateBadge
from app.gui.tray import Tray


class Background(QObject):
    """Without a tray the window closes and minimises as any other."""

    def __init__(self, window: QMainWindow, controls: ControlBar, badge: StateBadge, icons: Icons) -> None:
        super().__init__(window)
        self._window, self._controls = window, controls
        self._quits = self._is_closed = False
        self.tray = Tray(badge, icons, window) if Tray.is_available() else None
        if self.tray is None:
            return
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
        window.showNormal()
        window.raise_()
        window.activateWindow()

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
        if self.tray is not None:
            self.tray.close()

    def _follow(self) -> None:
        if self.tray is not None:
            controls = self._controls
            self.tray.show_run(controls.is_running)
            self.tray.show_choices(
                is_muted=controls.mute_button.isChecked(),
                blocks_interruption=controls.interruption_button.isChecked(),
            )
