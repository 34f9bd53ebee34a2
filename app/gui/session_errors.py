"""Errors of the session and of the program's start, shown in the banner.

In: errors of the session, its loss, changes of the devices, the GPU runtime that cannot be used. Out: the
banner, whose button looks for devices again or opens the settings. GUI thread.
"""

from __future__ import annotations

import logging

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QWidget

from app.gpu_runtime.activation import take_notice
from app.gui.bridge import SessionBridge
from app.gui.error_banner import ErrorBanner
from app.gui.error_texts import in_words
from app.session.commands import RescanDevices
from app.session.events import DevicesChanged, ErrorRaised, RecordingStopped

_log = logging.getLogger(__name__)


class SessionErrors(QObject):
    """An error of a device stays until it is dismissed or the device is back.

    Signals:
        settings_wanted: the remedy of an engine that could not be loaded: another model or device.
    """

    settings_wanted = Signal()

    def __init__(self, window: QWidget, bridge: SessionBridge, banner: ErrorBanner) -> None:
        super().__init__(window)
        self._banner, self._bridge = banner, bridge
        self._shows_fatal = False
        self._device_error = ""
        """The error of a device that the banner shows."""
        bridge.error_raised.connect(self._show_error)
        bridge.recording_stopped.connect(self._show_error)
        bridge.lost.connect(self._show_loss)
        bridge.devices_changed.connect(self._follow_devices)
        banner.remedied.connect(self._remedy)

    def show_gpu_runtime(self) -> None:
        """Show once why the GPU runtime is not used."""
        if notice := take_notice():
            _log.warning("%s", notice)
            self._banner.show_error(in_words(notice.what_is_wrong), in_words(notice.what_to_do))

    def _show_error(self, event: ErrorRaised | RecordingStopped) -> None:
        is_about_sound = isinstance(event, ErrorRaised) and event.is_about_sound
        self._shows_fatal = isinstance(event, ErrorRaised) and event.is_fatal
        remedy = self.tr("Look for devices again") if is_about_sound else ""
        if self._shows_fatal:
            remedy = self.tr("Open the settings")
        self._banner.show_error(in_words(event.message), in_words(event.what_to_do), remedy)
        self._device_error = self._banner.message if is_about_sound else ""

    def _remedy(self) -> None:
        if self._shows_fatal:
            self.settings_wanted.emit()
        else:
            self._bridge.send(RescanDevices())

    def _show_loss(self, reason: str) -> None:
        self._banner.show_error(
            self.tr("The session has ended unexpectedly: %1").replace("%1", reason),
            self.tr("Close the window and start the program again. See the log file for details."),
        )

    def _follow_devices(self, event: DevicesChanged) -> None:
        if event.input and event.output and self._banner.message == self._device_error:
            self._banner.dismiss()
