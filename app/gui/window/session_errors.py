"""Errors of the session and of the program's start, shown in the banner.

In: errors of the session, its loss, changes of the devices, engines that are ready, the GPU runtime that
cannot be used. Out: the banner, whose button looks for devices again or opens the settings. GUI thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QWidget

from app.gpu_runtime.activation import take_notice
from app.gui.common.bridge import SessionBridge
from app.gui.common.error_texts import cause_in_words, remedy_in_words
from app.gui.common.notices import ErrorBanner
from app.gui.settings.engine_switch import EngineSwitch
from app.session.commands import RescanDevices
from app.session.events import DevicesChanged, ErrorRaised, RecordingStopped
from app.settings import NAMES_AN_ENGINE
from engine_runtime.errors import Problem

_log = logging.getLogger(__name__)


class SessionErrors(QObject):
    """An error stays until it is dismissed or over: that of a device when the device is back, that of an
    engine when a chosen one is ready, that of a turn when the next one begins.

    Signals:
        settings_wanted: the remedy of an engine that could not be loaded: another model or device.
    """

    settings_wanted = Signal()

    def __init__(
        self, window: QWidget, bridge: SessionBridge, banner: ErrorBanner, engine: EngineSwitch
    ) -> None:
        super().__init__(window)
        self._banner, self._bridge, self._engine = banner, bridge, engine
        bridge.error_raised.connect(self._show_error)
        bridge.recording_stopped.connect(self._show_error)
        bridge.lost.connect(self._show_loss)
        bridge.devices_changed.connect(self._follow_devices)
        engine.chosen_runs.connect(self._follow_engine)
        bridge.turn_opened.connect(self._follow_turns)
        banner.remedied.connect(self._remedy)

    def show_gpu_runtime(self) -> None:
        """Show once why the GPU runtime is not used."""
        if notice := take_notice():
            _log.warning("%s", notice)
            self._banner.show_error(notice.problem)

    def show_damaged_settings(self, aside: Path) -> None:
        """Show that the settings were lost, and where the damaged file is."""
        self._banner.show_words(
            lambda: (
                self.tr("The settings file was damaged. All settings are back to their defaults."),
                self.tr("The damaged file is kept as %1.").replace("%1", str(aside)),
                "",
            )
        )

    def _show_error(self, event: ErrorRaised | RecordingStopped) -> None:
        if isinstance(event, RecordingStopped):
            self._banner.show_words(lambda: self._words_of_recording(event), event)
        elif event.is_fatal:
            stands_in = self._engine.wanted.bundle.name if self._engine.stands_in else ""
            is_for_window = self._is_for_window(event.problem)
            if stands_in:
                self._banner.show_words(
                    lambda: self._words_of_stand_in(event.problem, stands_in, has_advice=is_for_window),
                    event,
                )
            else:
                self._banner.show_words(
                    lambda: self._words_of_engine(event.problem, has_advice=is_for_window), event
                )
        elif event.is_about_sound:
            self._banner.show_words(
                lambda: (
                    cause_in_words(event.problem),
                    remedy_in_words(event.problem),
                    self.tr("Look for devices again"),
                ),
                event,
            )
        else:
            self._banner.show_error(event.problem, event)

    def _is_for_window(self, problem: Problem) -> bool:
        """Whether the remedy applies here: advice about command-line options does not, unless the command
        line named the engine."""
        if self._engine.failed is None or self._engine.failed.given & NAMES_AN_ENGINE:
            return True
        return "--" not in problem.what_to_do

    def _words_of_recording(self, event: RecordingStopped) -> tuple[str, str, str]:
        rest = self.tr("This conversation goes on but is no longer kept. The next one is.")
        return cause_in_words(event.problem), f"{remedy_in_words(event.problem)} {rest}", ""

    def _words_of_engine(self, problem: Problem, *, has_advice: bool) -> tuple[str, str, str]:
        where = self.tr("Choose another one on the Model or Engine page of the settings.")
        advice = remedy_in_words(problem) if has_advice else ""
        return cause_in_words(problem), advice or where, self.tr("Open the settings")

    def _words_of_stand_in(self, problem: Problem, name: str, *, has_advice: bool) -> tuple[str, str, str]:
        text = self.tr("The engine chosen in the settings cannot be used: %1")
        instead = self.tr("%1 answers instead. Check the Engine page of the settings.")
        advice = remedy_in_words(problem) if has_advice else ""
        return (
            text.replace("%1", cause_in_words(problem)),
            f"{advice} {instead.replace('%1', name)}".strip(),
            self.tr("Open the settings"),
        )

    def _remedy(self) -> None:
        shown = self._banner.subject
        if isinstance(shown, ErrorRaised) and shown.is_fatal:
            self.settings_wanted.emit()
        else:
            self._bridge.send(RescanDevices())

    def _show_loss(self, reason: str) -> None:
        self._banner.show_words(
            lambda: (
                self.tr("The session ended unexpectedly: %1").replace("%1", reason),
                self.tr("Close the window and restart the program. The log file has details."),
                "",
            )
        )

    def _follow_devices(self, event: DevicesChanged) -> None:
        if event.input and event.output:
            self._end(lambda error: error.is_about_sound)

    def _follow_engine(self) -> None:
        self._end(lambda error: error.is_fatal)

    def _follow_turns(self) -> None:
        self._end(lambda error: error.is_past or error.turn_id is not None)

    def _end(self, is_over: Callable[[ErrorRaised], bool]) -> None:
        self._banner.end(lambda subject: isinstance(subject, ErrorRaised) and is_over(subject))
