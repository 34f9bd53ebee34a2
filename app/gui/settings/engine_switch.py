"""Switches the engine while the window runs: another model, voice, device or weight format.

In: edited preferences, EngineReady and fatal errors of the session. Out: LoadEngine; preferences in force;
notices. If the other engine cannot be loaded, the one before is loaded again; a TensorRT-LLM engine or a
Python of the saved preferences that fails at the start is replaced by the model that came with the program.
GUI thread.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.gui.common.bridge import SessionBridge
from app.gui.common.preferences import ENGINE_OPTIONS, Preferences
from app.gui.settings.applied_preferences import AppliedPreferences
from app.session.commands import LoadEngine
from app.session.engine_slot import EngineSource
from app.session.events import EngineReady, ErrorRaised
from app.settings import NAMES_AN_ENGINE, StartSettings

EngineLoader = Callable[[StartSettings], EngineSource]


class EngineSwitch(QObject):
    """The engine of the command line is used until another one is chosen. Without `loader` the session keeps
    the engine that it began with.

    Attributes:
        wanted: the engine that runs or is being loaded.
        is_loading: whether it is being loaded.
        failed: the latest one that could not be loaded.
        stands_in: whether `wanted` was not chosen, but takes the place of `failed`.

    Signals:
        loading: an engine of this model is requested.
        chosen_runs: the engine that runs is the chosen one.
        noticed: something about the engine that needs no action, in words for the user.
    """

    loading = Signal(str)
    chosen_runs = Signal()
    noticed = Signal(str)

    def __init__(
        self,
        parent: QObject,
        bridge: SessionBridge,
        applied: AppliedPreferences,
        loader: EngineLoader | None,
    ) -> None:
        super().__init__(parent)
        self._bridge, self._applied, self._loader = bridge, applied, loader
        self.wanted = applied.start_settings()
        self.is_loading = True
        self.failed: StartSettings | None = None
        self.stands_in = False
        self._before: tuple[Preferences, StartSettings] | None = None
        """The choice that worked last, while another engine is loaded."""
        self._last_ready: StartSettings | None = None
        bridge.engine_ready.connect(self._settle)
        bridge.error_raised.connect(self._replace_failed)

    @property
    def bundle(self) -> Path:
        """Folder of the model that runs or is being loaded."""
        return self.wanted.bundle

    def apply_edited(self, edited: Preferences) -> None:
        """Apply preferences that were edited from the current ones; another engine is loaded if they name
        one."""
        before, has_worked = self._applied.engine_choice(), self._was_ready(self._applied.start_settings())
        self._applied.apply(edited)
        start = self._applied.start_settings()
        if not start.loads_as(self.wanted):
            if not self.is_loading:
                self._before = before if has_worked else None
            self._load(start)
        elif self.stands_in:
            self.stands_in = False
            self.chosen_runs.emit()

    def gives_up(self, edited: Preferences) -> StartSettings | None:
        """What these preferences would load in place of the TensorRT-LLM engine that runs; None if they keep
        it, or if none runs."""
        has_failed = not self.is_loading and not self._was_ready(self.wanted)
        if has_failed or self.wanted.server or self.wanted.engine.backend != "trtllm":
            return None
        start = self._applied.start_settings(edited)
        return start if start.server or start.engine.backend != "trtllm" else None

    def _was_ready(self, start: StartSettings) -> bool:
        return self._last_ready is not None and start.loads_as(self._last_ready)

    def _load(self, start: StartSettings, *, stands_in: bool = False) -> None:
        if self._loader is not None:
            self.wanted, self.is_loading, self.stands_in = start, True, stands_in
            self.loading.emit(start.server or start.bundle.name)
            self._bridge.send(LoadEngine(self._loader(start)))

    def _settle(self, event: EngineReady) -> None:
        is_other, self.is_loading, self._before = self._before is not None, False, None
        self._last_ready = self.wanted
        if not self.stands_in:
            self.chosen_runs.emit()
        if not event.keeps_history:
            text = self.tr("%1 is ready. It does not know the conversation so far.")
        elif is_other:
            text = self.tr("%1 is ready.")
        else:
            return
        self.noticed.emit(text.replace("%1", event.bundle))

    def _replace_failed(self, error: ErrorRaised) -> None:
        if not (error.is_fatal and self.is_loading):
            return
        self.is_loading, self.failed = False, self.wanted
        if self._before is not None:
            choice, self._before = self._before, None
            self._applied.restore_engine(choice)
            self._load(self._applied.start_settings(), stands_in=True)
        elif _is_saved_engine(self.wanted):
            self._load(_shipped(self._applied.current, self._applied.given), stands_in=True)


def _is_saved_engine(start: StartSettings) -> bool:
    """Whether this is a TensorRT-LLM engine, or one of another environment, that the command line did not
    name."""
    is_one = start.engine.backend == "trtllm" or start.engine_python is not None
    return is_one and not start.given & NAMES_AN_ENGINE


def _shipped(preferences: Preferences, given: StartSettings) -> StartSettings:
    """The model that came with the program, on the processor."""
    return preferences.with_engine_of(Preferences()).start_settings(given.released(ENGINE_OPTIONS))
