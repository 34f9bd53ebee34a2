"""The settings dialog, the guide, and the models that are downloaded while neither is open.

In: clicks, the devices of the session, the end of downloads. Out: applied preferences; notices, and errors in
the banner. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import QObject, Qt, SignalInstance
from PySide6.QtWidgets import QDialog, QWidget

from app.gui.common.bridge import SessionBridge
from app.gui.common.notices import ErrorBanner, NoticeLine
from app.gui.common.preferences import Preferences
from app.gui.common.question import is_confirmed
from app.gui.settings.applied_preferences import AppliedPreferences
from app.gui.settings.engine_switch import EngineSwitch
from app.gui.settings.gpu_page import make_installer
from app.gui.settings.guide_dialog import GuideDialog
from app.gui.settings.model_jobs import Job
from app.gui.settings.model_page import ModelTools
from app.gui.settings.settings_dialog import SettingsDialog
from app.session.events import DevicesChanged
from app.settings import StartSettings
from engine_runtime.errors import Problem


class SettingsActions(QObject):
    """`engine` switches to the engine that the preferences name; `closed` is the signal of the window.

    Attributes:
        tools: downloads, and what fits on which device.
        gpu: installs the GPU runtime, None where there can be none.
    """

    def __init__(
        self,
        window: QWidget,
        closed: SignalInstance,
        bridge: SessionBridge,
        applied: AppliedPreferences,
        engine: EngineSwitch,
        banner: ErrorBanner,
        notice: NoticeLine,
    ) -> None:
        super().__init__(window)
        self._window, self._bridge, self._engine = window, bridge, engine
        self._applied = applied
        self._banner, self._notice = banner, notice
        self._devices: DevicesChanged | None = None
        self.tools = ModelTools(self)
        self.gpu = make_installer(window, closed)
        self.tools.jobs.finished.connect(self._announce)
        self.tools.jobs.failed.connect(self._show_failure)
        bridge.devices_changed.connect(self._take_devices)
        engine.noticed.connect(notice.announce)

    def open_settings(self) -> None:
        """Show the settings dialog; OK applies."""
        given = self._applied.current
        dialog = SettingsDialog(
            given,
            self._devices,
            self._window,
            self._bridge,
            self.tools,
            self.gpu,
            self._engine.wanted,
        )
        if self._engine.stands_in:
            dialog.open_engine()
        if not self._applied.store.is_kept:
            dialog.keeping.forbid_keeping()
        if dialog.exec() == QDialog.DialogCode.Accepted:
            self._apply(given, dialog.preferences())
        dialog.deleteLater()

    def open_guide(self) -> GuideDialog:
        """Show the guide; its last step applies. Returns at once."""
        given = self._applied.current
        guide = GuideDialog(given, self._devices, self._window, self._bridge, self.tools, self._engine.wanted)
        guide.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        guide.devices_chosen.connect(self._applied.choose_devices)
        guide.accepted.connect(lambda: self._apply(given, guide.preferences()))
        guide.rejected.connect(lambda: self._applied.apply(self._applied.current))  # not shown again
        guide.open()
        return guide

    def shut_down(self) -> None:
        """End what runs in processes of its own: the window closes."""
        self.tools.kill()

    def _apply(self, given: Preferences, edited: Preferences) -> None:
        """Apply what was edited from `given`; what has changed elsewhere meanwhile stays, such as by the menu
        of the tray. A TensorRT-LLM engine is given up only if the user confirms that."""
        edited = self._applied.current.with_changes(given, edited)
        start = self._engine.gives_up(edited)
        if start is not None and not self._gives_up_engine(start):
            edited = edited.with_engine_of(self._applied.current)
        self._engine.apply_edited(edited)

    def _gives_up_engine(self, start: StartSettings) -> bool:
        engine = self._engine.wanted.engine.engine
        name = "" if engine is None else engine.name
        question = self.tr("Stop using the TensorRT-LLM engine %1?").replace("%1", name)
        text = (
            self.tr("%1 will answer instead.") if start.server else self.tr("PyTorch will load %1 instead.")
        )
        name = start.server or start.bundle.name
        return is_confirmed(self._window, question, text.replace("%1", name), self.tr("Stop using it"))

    def _take_devices(self, event: DevicesChanged) -> None:
        self._devices = event

    def _announce(self, job: Job) -> None:
        if job.kind == "download":
            text = self.tr("%1 is downloaded. Select it on the Model page of the settings.")
            self._notice.announce(text.replace("%1", job.model.name))

    def _show_failure(self, job: Job, problem: Problem) -> None:
        if job.kind != "verify":  # a check is begun and seen in the dialog
            self._banner.show_error(problem)
