"""Switches the engine while the window runs: another model, voice, device or weight format.

In: edited preferences, EngineReady and fatal errors of the session. Out: LoadEngine; preferences in force;
notices. If the other engine cannot be loaded, the one before is loaded again. GUI thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.gui.applied_preferences import AppliedPreferences
from app.gui.bridge import SessionBridge
from app.gui.preferences import Preferences
from app.session.commands import LoadEngine
from app.session.engine_source import EngineSource
from app.session.events import EngineReady, ErrorRaised
from app.settings import PREFERRED, StartSettings

EngineLoader = Callable[[StartSettings], EngineSource]


class EngineSwitch(QObject):
    """`given` is the command line, whose engine holds until another one is chosen. Without `loader` the
    session keeps the engine that it began with.

    Attributes:
        wanted: the engine that runs or is being loaded.
        is_loading: whether it is being loaded.

    Signals:
        loading: an engine of this model is requested.
        noticed: something about the engine that needs no action, in words for the user.
    """

    loading = Signal(str)
    noticed = Signal(str)

    def __init__(
        self,
        parent: QObject,
        bridge: SessionBridge,
        applied: AppliedPreferences,
        given: StartSettings,
        loader: EngineLoader | None,
    ) -> None:
        super().__init__(parent)
        self._bridge, self._applied, self._given, self._loader = bridge, applied, given, loader
        self.wanted = applied.current.start_settings(given)
        self.is_loading = True
        self._before: tuple[Preferences, StartSettings] | None = None
        """The preferences and the command line with which the last engine worked, while another is loaded."""
        bridge.engine_ready.connect(self._settle)
        bridge.error_raised.connect(self._return_after)

    @property
    def bundle(self) -> Path:
        """Folder of the model that runs or is being loaded."""
        return self.wanted.bundle

    def shown(self) -> Preferences:
        """The preferences with the engine that runs, for the settings dialog."""
        return self._applied.current.with_engine(self.wanted)

    def apply(self, edited: Preferences) -> None:
        """Apply preferences that were edited from `shown`; another engine is loaded if they name one."""
        if edited == edited.with_engine_of(self.shown()):
            self._applied.apply(edited.with_engine_of(self._applied.current))
            return
        before = self._applied.current, self._given
        self._given = _released(self._given)
        if edited.server:
            self._given = dataclasses.replace(self._given, engine_python=None)
        self._applied.apply(edited)
        start = edited.start_settings(self._given)
        if start != self.wanted:
            self._before = self._before if self.is_loading else before
            self._load(start)

    def _load(self, start: StartSettings) -> None:
        if self._loader is not None:
            self.wanted, self.is_loading = start, True
            self.loading.emit(start.server or start.bundle.name)
            self._bridge.send(LoadEngine(self._loader(start)))

    def _settle(self, event: EngineReady) -> None:
        is_other, self.is_loading, self._before = self._before is not None, False, None
        if not event.keeps_history:
            text = self.tr("%1 is ready. It does not know what was said before.")
        elif is_other:
            text = self.tr("%1 is ready.")
        else:
            return
        self.noticed.emit(text.replace("%1", event.bundle))

    def _return_after(self, error: ErrorRaised) -> None:
        if not (error.is_fatal and self.is_loading):
            return
        self.is_loading = False
        if self._before is not None:
            (preferences, self._given), self._before = self._before, None
            self._applied.apply(self._applied.current.with_engine_of(preferences))
            self._load(self._applied.current.start_settings(self._given))


def _released(given: StartSettings) -> StartSettings:
    """The command line without what the preferences say about an engine: they were chosen later."""
    engine = dataclasses.replace(
        given.engine,
        flow_steps=None,
        flow_schedule=None,
        codec_dtype=None,
        exact_encoding=False,
        random_weights=None,
        backend="torch",
        engine=None,
    )
    return dataclasses.replace(
        given,
        server="",
        server_key="",
        bundle=StartSettings().bundle,
        voice=None,
        engine=engine,
        left_open=PREFERRED,
    )
