"""The window in the background: tray icon, closing into the tray, starting minimised, coming back, quitting.

In: the choices of the tray's menu, later starts of the program, the close events of the window. Out: the
window shown, hidden or closed for good. GUI thread; nothing here blocks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket

from PySide6.QtCore import QObject, QSize, QSocketNotifier, Qt, QTimer, Signal
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QApplication, QMainWindow, QMenu, QSystemTrayIcon, QWidget

from app.gui.common.icons import Icons
from app.gui.common.plain_text import set_tip
from app.gui.window.control_bar import ControlBar
from app.gui.window.state_badge import StateBadge
from app.instance import MOST_BYTES, Answer, Instance, Knock, as_message, is_of_this_user, read_knock
from app.session.events import SessionState

_log = logging.getLogger(__name__)
_MOST_CONNECTIONS = 8
"""Connections; the oldest is dropped for another one."""
_PRODUCT, _LOGO = "MOSS Voice", "moss-voice"
_WATCHER = "org.kde.StatusNotifierWatcher"
"""Keeps the list of icons on the session bus, where a panel, the host, looks for them."""
_BUS_MS = 500
_FRAME = QSize(8, 48)
"""Room for the frame of a window and its title bar, which are known only once it is shown."""
TRAY_CHECK_MS = 2_000
_TRAY_MISSED = 3
"""Number of checks without a tray after which a hidden window is shown again: a panel may just be
restarting."""


class LaterStarts(QObject):
    """Listens from its creation until `shut_down`.

    Signals:
        knocked: the user started the program again; a Knock.
    """

    knocked = Signal(object)

    def __init__(self, instance: Instance, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._instance = instance
        self._open: dict[socket.socket, QSocketNotifier] = {}
        self._listener = instance.listen()
        if self._listener is not None:
            notifier = QSocketNotifier(self._listener.fileno(), QSocketNotifier.Type.Read, self)
            notifier.activated.connect(self._accept)
            self._notifier = notifier

    def shut_down(self) -> None:
        """Later starts wait until this process has ended."""
        if self._listener is not None:
            self._notifier.setEnabled(False)
            self._listener = None
        for connection in list(self._open):
            self._drop(connection)
        self._instance.stop_listening()

    def _accept(self) -> None:
        if self._listener is None:
            return
        with contextlib.suppress(OSError):  # the other process has gone
            connection, _ = self._listener.accept()
            if not is_of_this_user(connection):
                _log.warning("a process of another user knocked")
                connection.close()
                return
            connection.setblocking(False)
            if len(self._open) >= _MOST_CONNECTIONS:
                self._drop(next(iter(self._open)))
            notifier = QSocketNotifier(connection.fileno(), QSocketNotifier.Type.Read, self)
            notifier.activated.connect(lambda: self._answer(connection))
            self._open[connection] = notifier

    def _answer(self, connection: socket.socket) -> None:
        if connection not in self._open:
            return
        with contextlib.suppress(OSError):
            knock = read_knock(connection.recv(MOST_BYTES))
            if knock is not None:
                self.knocked.emit(knock)
                display = os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY") or ""
                connection.send(as_message(Answer(os.getpid(), display)))
        self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        notifier = self._open.pop(connection)
        notifier.setEnabled(False)
        notifier.deleteLater()
        connection.close()


class Tray(QObject):
    """Follows a badge. A click on the icon shows or hides the window.

    Signals:
        window_toggled, run_toggled, quit_wanted: an entry of the menu was chosen.
        muted, interruption_blocked: an entry was checked or unchecked (bool).
    """

    window_toggled = Signal()
    run_toggled = Signal()
    muted = Signal(bool)
    interruption_blocked = Signal(bool)
    quit_wanted = Signal()

    def __init__(self, badge: StateBadge, icons: Icons, window: QWidget) -> None:
        super().__init__(window)
        self._badge, self._icons, self._window = badge, icons, window
        self._is_running = False
        self.icon = QSystemTrayIcon(self)
        self.menu = QMenu(window)
        self.window_action, self.run_action, self.quit_action = (QAction(self) for _ in range(3))
        self.mute_action, self.interruption_action = QAction(self), QAction(self)
        for action, signal in (
            (self.window_action, self.window_toggled),
            (self.run_action, self.run_toggled),
            (self.mute_action, self.muted),
            (self.interruption_action, self.interruption_blocked),
            (self.quit_action, self.quit_wanted),
        ):
            is_check = action in (self.mute_action, self.interruption_action)
            action.setCheckable(is_check)
            (action.toggled if is_check else action.triggered).connect(signal)
            self.menu.addAction(action)
        self.menu.insertSeparator(self.run_action)
        self.menu.insertSeparator(self.quit_action)
        self.menu.aboutToShow.connect(self.retranslate)
        self.icon.setContextMenu(self.menu)
        self.icon.activated.connect(self._on_click)
        badge.changed.connect(self._follow)
        self.retranslate()
        self._follow()

    @staticmethod
    def is_available() -> bool:
        """Whether the desktop has a tray, and shows it."""
        return QSystemTrayIcon.isSystemTrayAvailable() and not _is_hidden_by_desktop()

    def show_icon(self) -> None:
        """Put the icon into the tray."""
        self.icon.show()

    def hide_icon(self) -> None:
        """Take the icon away, before the window goes."""
        self.icon.hide()

    def show_run(self, is_running: bool) -> None:
        """Show whether the microphone is open."""
        self._is_running = is_running
        self.retranslate()

    def show_choices(self, *, is_muted: bool, blocks_interruption: bool) -> None:
        """Show what is chosen in the window."""
        for action, on in (
            (self.mute_action, is_muted),
            (self.interruption_action, blocks_interruption),
        ):
            action.blockSignals(True)
            action.setChecked(on)
            action.blockSignals(False)

    def retranslate(self) -> None:
        """Use the words of the current language."""
        is_shown = self._window.isVisible() and not self._window.isMinimized()
        self.window_action.setText(self.tr("Hide the window") if is_shown else self.tr("Show the window"))
        self.run_action.setText(self.tr("Stop listening") if self._is_running else self.tr("Start listening"))
        self.mute_action.setText(self.tr("Mute the microphone"))
        self.interruption_action.setText(self.tr("Do not interrupt replies"))
        self.quit_action.setText(self.tr("Quit"))

    def _follow(self) -> None:
        """Show the program's icon with that of the badge on it; at rest the program's alone."""
        badge = self._badge
        if badge.state is SessionState.STOPPED and not badge.is_reconnecting:
            self.icon.setIcon(self._icons.icon(_LOGO, badge.colour))
        else:
            self.icon.setIcon(self._icons.marked(_LOGO, badge.icon_name, badge.colour))
        set_tip(self.icon, f"{_PRODUCT}: {badge.word}")

    def _on_click(self, reason: QSystemTrayIcon.ActivationReason) -> None:
        if reason is QSystemTrayIcon.ActivationReason.Trigger:
            self.window_toggled.emit()


def _is_hidden_by_desktop() -> bool:
    """Whether there is a list of icons that nothing shows: its panel has ended. Qt does not ask for that."""
    try:
        from PySide6.QtDBus import QDBus, QDBusConnection, QDBusError, QDBusMessage
    except ImportError:
        return False
    bus = QDBusConnection.sessionBus()
    if not bus.isConnected():
        return False
    question = QDBusMessage.createMethodCall(
        _WATCHER, "/StatusNotifierWatcher", "org.freedesktop.DBus.Properties", "Get"
    )
    question.setArguments([_WATCHER, "IsStatusNotifierHostRegistered"])
    answer = bus.call(question, QDBus.CallMode.Block, _BUS_MS)
    if answer.type() is QDBusMessage.MessageType.ErrorMessage:
        return QDBusError(answer).type() in (QDBusError.ErrorType.NoReply, QDBusError.ErrorType.Timeout)
    return [_plain(value) for value in answer.arguments()] == [False]


def _plain(value: object) -> object:
    """A value that came as a variant."""
    return value.variant() if hasattr(value, "variant") else value


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
        tray.run_toggled.connect(controls.toggle_listening)
        tray.muted.connect(controls.mute_button.setChecked)
        tray.interruption_blocked.connect(controls.interruption_button.setChecked)
        tray.quit_wanted.connect(self.quit)
        badge.changed.connect(self._follow)
        controls.mute_button.toggled.connect(self._follow)
        controls.interruption_button.toggled.connect(self._follow)
        self._follow()
        tray.show_icon()

    def show_window(self, *, is_minimised: bool) -> None:
        """Show the window for the first time, no larger than the screen with its frame; minimised means in
        the tray where there is one."""
        window = self._window
        window.resize(window.size().boundedTo(window.screen().availableSize() - _FRAME))
        if not is_minimised:
            window.show()
        elif self.tray is None:
            window.showMinimized()

    def toggle_window(self) -> None:
        """Hide the window, or bring it to the front."""
        window = self._window
        if window.isVisible() and not window.isMinimized():
            window.hide()
            return
        self._raise(window)

    def toggle_front(self, token: str = "") -> None:
        """Put away the window that the user works with, or bring it to the front as `bring_to_front`. Without
        a tray it is minimised, because nothing would show a hidden one."""
        front = self._compact if self._compact.isVisible() else self._window
        if not front.isVisible() or front.isMinimized() or not front.isActiveWindow():
            self.bring_to_front(token)
        elif self.tray is None:
            front.showMinimized()
        else:
            front.hide()

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

    def shut_down(self) -> None:
        """The window closes for good."""
        self._is_closed = True
        self._watch.stop()
        if self._later_starts is not None:
            self._later_starts.shut_down()
        if self.tray is not None:
            self.tray.hide_icon()

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
