"""The icon in the desktop's tray: state of the conversation, and a menu for use without a window.

In: the state badge, and the states of mute and interruption. Out: signals for the choices of the menu. Only
where the desktop has a tray. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu, QSystemTrayIcon, QWidget

from app.gui.common.icons import Icons
from app.gui.common.plain_text import set_tip
from app.gui.window.state_badge import StateBadge
from app.session.events import SessionState

_PRODUCT, _LOGO = "MOSS Voice", "moss-voice"
_WATCHER = "org.kde.StatusNotifierWatcher"
"""Keeps the list of icons on the session bus, where a panel, the host, looks for them."""
_BUS_MS = 500


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

    def show(self) -> None:
        """Put the icon into the tray."""
        self.icon.show()

    def close(self) -> None:
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
        """Show the program, and on it what the badge shows; at rest the program alone."""
        badge = self._badge
        if badge.state is SessionState.STOPPED:
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
