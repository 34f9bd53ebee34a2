"""The current preferences of the window: a change is saved and sent to the session.

In: edited preferences, choices made with the controls. Out: commands to the session; `changed`, `failed`. GUI
thread.
"""

from __future__ import annotations

import dataclasses

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QWidget

from app.gui.bridge import SessionBridge
from app.gui.preferences import Interruption, Preferences, PreferenceStore
from app.session.commands import ApplySettings, SetDevices, SetReply, SetVolume
from app.session.session_settings import SessionSettings
from engine_runtime.types import Modality


class AppliedPreferences(QObject):
    """`base` is the settings of the command line.

    Attributes:
        current: the preferences that apply now.
        store: where they are saved.

    Signals:
        changed: other preferences were applied.
        failed: they could not be saved; what is wrong and what to do.
    """

    changed = Signal()
    failed = Signal(str, str)

    def __init__(
        self, window: QWidget, bridge: SessionBridge, store: PreferenceStore, base: SessionSettings
    ) -> None:
        super().__init__(window)
        self.store = store
        self.current = store.load()
        self._bridge, self._base = bridge, base

    def session_settings(self) -> SessionSettings:
        """The settings of a session with these preferences."""
        return self.current.session_settings(self._base)

    def apply(self, preferences: Preferences) -> None:
        """Replace the preferences."""
        before = self.session_settings()
        if preferences.seed != self.current.seed:
            # Chosen later than the one of the command line.
            self._base = dataclasses.replace(self._base, seed=None)
        self.current = preferences
        if not self.store.save(preferences):
            advice = self.tr("They apply until the program ends. Check that %1 can be written.")
            self.failed.emit(
                self.tr("The settings could not be saved."), advice.replace("%1", str(self.store.file))
            )
        if self.session_settings() != before:
            self._bridge.send(ApplySettings(self.session_settings()))
        self.changed.emit()

    def choose_interruption(self, interruption: Interruption) -> None:
        """When the user's voice stops a reply."""
        self.apply(dataclasses.replace(self.current, interruption=interruption))

    def choose_devices(self, input_device: str, output_device: str) -> None:
        """Use these sound devices, "" for the default one."""
        self.current = dataclasses.replace(
            self.current, input_device=input_device, output_device=output_device
        )
        self.store.save(self.current)
        self._bridge.send(SetDevices(input_device or None, output_device or None))

    def choose_reply(self, modality: Modality) -> None:
        """Reply in speech or text."""
        self.current = dataclasses.replace(self.current, reply=modality)
        self.store.save(self.current)
        self._bridge.send(SetReply(modality))

    def choose_volume(self, percent: int) -> None:
        """Play at this volume; it is saved by `close`."""
        self.current = dataclasses.replace(self.current, volume=percent)
        self._bridge.send(SetVolume(percent / 100))

    def close(self, *, latency_panel: bool, latency_window: bool) -> None:
        """The window closes, with or without its latency view, which may have had a window of its own."""
        self.current = dataclasses.replace(
            self.current, latency_panel=latency_panel, latency_window=latency_window
        )
        self.store.save(self.current)
