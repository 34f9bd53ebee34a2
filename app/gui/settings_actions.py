"""The settings dialog, and the models that are downloaded while no dialog is open.

In: clicks, the devices of the session, the end of downloads. Out: applied preferences; notices, and errors in
the banner. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QDialog, QWidget

from app.gui.bridge import SessionBridge
from app.gui.engine_switch import EngineSwitch
from app.gui.error_banner import ErrorBanner
from app.gui.gpu_installer import GpuInstaller
from app.gui.model_jobs import Job
from app.gui.model_page import ModelTools
from app.gui.notice_line import NoticeLine
from app.gui.settings_dialog import SettingsDialog
from app.session.events import DevicesChanged


class SettingsActions(QObject):
    """`engine` switches to the engine that the preferences name, `gpu` installs the GPU runtime."""

    def __init__(
        self,
        window: QWidget,
        bridge: SessionBridge,
        engine: EngineSwitch,
        gpu: GpuInstaller | None,
        banner: ErrorBanner,
        notice: NoticeLine,
    ) -> None:
        super().__init__(window)
        self._window, self._bridge, self._engine, self._gpu = window, bridge, engine, gpu
        self._banner, self._notice = banner, notice
        self._devices: DevicesChanged | None = None
        self.tools = ModelTools(self)
        self.tools.jobs.finished.connect(self._announce)
        self.tools.jobs.failed.connect(self._show_failure)
        bridge.devices_changed.connect(self._take_devices)
        engine.noticed.connect(notice.show_notice)

    def open_settings(self) -> None:
        """Show the settings dialog; OK applies."""
        dialog = SettingsDialog(
            self._engine.shown(), self._devices, self._window, self._bridge, self.tools, self._gpu
        )
        if dialog.exec() == QDialog.DialogCode.Accepted:
            self._engine.apply(dialog.preferences())
        dialog.deleteLater()

    def close(self) -> None:
        """End what runs in processes of its own: the window closes."""
        self.tools.close()

    def _take_devices(self, event: DevicesChanged) -> None:
        self._devices = event

    def _announce(self, job: Job) -> None:
        if job.kind == "download":
            text = self.tr("%1 is downloaded. Choose it in the settings, on the page Model.")
            self._notice.show_notice(text.replace("%1", job.model.name))

    def _show_failure(self, job: Job, message: str, what_to_do: str) -> None:
        if job.kind != "verify":  # a check is begun and seen in the dialog
            self._banner.show_error(message, what_to_do)
