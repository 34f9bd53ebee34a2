"""The current preferences of the window: a change is saved and sent to the session.

In: the command line, edited preferences, choices made with the controls. Out: commands to the session;
`changed`, `failed`. GUI thread.
"""

from __future__ import annotations

import dataclasses

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QWidget

from app.gui.common.bridge import SessionBridge
from app.gui.common.preferences import (
    ENGINE_FIELDS,
    ENGINE_OPTIONS,
    Interruption,
    Preferences,
    PreferenceStore,
)
from app.session.commands import ApplySettings, SetDevices, SetReply, SetVolume
from app.session.session_settings import SessionSettings
from app.settings import StartSettings
from engine_runtime.errors import Problem
from engine_runtime.types import Modality


class AppliedPreferences(QObject):
    """The command line overrides saved preferences, and changes in the window override the command line: a
    preference that differs from `current` is released from the command line and saved, all others stay. What
    belongs to an engine is saved together.

    Attributes:
        given: what the command line gave and the user has not changed since.
        current: the preferences in force: those saved, with what is given.
        store: where they are saved.

    Signals:
        changed: other preferences were applied.
        failed: they could not be saved; the `Problem`. Once, until they can be saved again.
        recovered: they could be saved again; the `Problem` that is over.
    """

    changed = Signal()
    failed = Signal(object)
    recovered = Signal(object)

    def __init__(
        self, window: QWidget, bridge: SessionBridge, store: PreferenceStore, given: StartSettings
    ) -> None:
        super().__init__(window)
        self.store, self.given = store, given
        self._bridge = bridge
        self._problem: Problem | None = None
        """Why they could not be saved last."""
        self._saved = store.load()
        self.current = self._saved.with_given(given)

    def session_settings(self) -> SessionSettings:
        """The settings of a session with these preferences."""
        return self.current.session_settings()

    def start_settings(self, edited: Preferences | None = None) -> StartSettings:
        """The engine of the current preferences, or the one with edited ones."""
        saved, given = self._chosen(self.current if edited is None else edited)
        return saved.start_settings(given)

    def apply(self, preferences: Preferences) -> None:
        """Replace the preferences."""
        before = self.session_settings()
        self._take(preferences)
        self._save()
        if self.session_settings() != before:
            self._bridge.send(ApplySettings(self.session_settings()))
        self.changed.emit()

    def engine_choice(self) -> tuple[Preferences, StartSettings]:
        """What `restore_engine` takes."""
        return self._saved, self.given

    def restore_engine(self, choice: tuple[Preferences, StartSettings]) -> None:
        """Go back to the engine of earlier preferences; all else stays."""
        saved, given = choice
        released = given.given - self.given.given - ENGINE_OPTIONS
        self._saved, self.given = self._saved.with_engine_of(saved), given.released(released)
        self.current = self._saved.with_given(self.given)
        self._save()
        self.changed.emit()

    def choose_interruption(self, interruption: Interruption) -> None:
        """When the user's voice stops a reply."""
        self.apply(dataclasses.replace(self.current, interruption=interruption))

    def choose_flow_steps(self, steps: int | None) -> None:
        """Euler steps of the flow from the next turn on, None for those of the bundle."""
        self.apply(dataclasses.replace(self.current, flow_steps=steps))

    def choose_devices(self, input_device: str, output_device: str) -> None:
        """Use these sound devices, "" for the default one."""
        self._take(dataclasses.replace(self.current, input_device=input_device, output_device=output_device))
        self._save()
        self._bridge.send(SetDevices(input_device or None, output_device or None))

    def choose_reply(self, modality: Modality) -> None:
        """Reply in speech or text."""
        self._take(dataclasses.replace(self.current, reply=modality))
        self._save()
        self._bridge.send(SetReply(modality))

    def choose_volume(self, percent: int) -> None:
        """Play at this volume; it is saved by `save_at_exit`."""
        self._take(dataclasses.replace(self.current, volume=percent))
        self._bridge.send(SetVolume(percent / 100))

    def save_at_exit(self, *, latency_panel: bool, latency_window: bool) -> None:
        """The window closes, with or without its latency view, which may have had a window of its own."""
        self._take(
            dataclasses.replace(self.current, latency_panel=latency_panel, latency_window=latency_window)
        )
        self.store.save(self._saved)

    def _chosen(self, edited: Preferences) -> tuple[Preferences, StartSettings]:
        """What would be saved, and which options of the command line would remain, if the user chose this."""
        changed = edited.changed_from(self.current)
        if changed.intersection(ENGINE_FIELDS):
            changed.update(ENGINE_FIELDS)
        saved = dataclasses.replace(self._saved, **{name: getattr(edited, name) for name in changed})
        return saved, self.given.released(edited.releases(self.current))

    def _take(self, edited: Preferences) -> None:
        self._saved, self.given = self._chosen(edited)
        self.current = self._saved.with_given(self.given)

    def _save(self) -> None:
        before, self._problem = self._problem, None
        if not self.store.save(self._saved):
            self._problem = Problem(
                "The settings could not be saved.",
                "They apply until the program ends. Check that {file} can be written.",
                file=self.store.file,
            )
        if self._problem is not None and before is None:
            self.failed.emit(self._problem)
        elif self._problem is None and before is not None:
            self.recovered.emit(before)
