"""Where replies come from: an engine of this process, or a host that holds the conversation elsewhere.

In: what the composition root makes. Out: types for commands, jobs and the engine thread. No torch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from engine_runtime.timing import TimingBus

if TYPE_CHECKING:  # torch is imported by the factory, in the engine thread
    from engine_runtime.engine import Engine

EngineFactory = Callable[[], AbstractContextManager["Engine"]]
"""Loads an engine. Called once, in the engine thread; may raise a MossVoiceError. The context is left when
the session ends or loads another one: an `Engine` closes itself then, `nullcontext(engine)` leaves it to its
owner."""


class JobDesk(Protocol):
    """The jobs of one session and their results, for an `EngineHost`. Jobs and results are those of
    engine_jobs.py, which name this module."""

    def on_job(self, notify: Callable[[], None] | None) -> None:
        """Call `notify` in the submitting thread whenever there is a job; it must not block."""

    def take(self) -> Any | None:
        """The next job, None if there is none now. Each is followed by `done`."""

    def done(self) -> None:
        """A job was carried out."""

    def begin(self) -> None:
        """Work that outlasts its job begins, such as a reply; it ends with `done`."""

    def give(self, result: Any) -> None:
        """A result for the dialog thread."""

    def ready(self, loaded: Any, timing: TimingBus) -> None:
        """The conversation can begin. Durations are put on this bus from now on."""


@runtime_checkable
class EngineHost(Protocol):
    """Holds a conversation in an engine that is not in this process."""

    def converse(self, desk: JobDesk, *, has_history: bool) -> EngineSource | None:
        """Carry out jobs until Close, or until Load, whose source is returned. Blocks; engine thread.

        `has_history`: another engine held a conversation before, of which this one knows nothing. Raises
        MossVoiceError where there is no engine, or none any more.
        """


EngineSource = Callable[[], "AbstractContextManager[Engine] | EngineHost"]
"""An `EngineFactory`, or what makes a host."""
