"""Where replies come from: an engine of this process, or one elsewhere that holds the conversation itself.

In: what the composition root makes. Out: types for commands and the engine thread. No torch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from app.session.engine_slot import SlotPort

if TYPE_CHECKING:  # torch is imported by the factory, in the engine thread
    from engine_runtime.engine import Engine

EngineFactory = Callable[[], AbstractContextManager["Engine"]]
"""Loads an engine. Called once, in the engine thread; may raise a MossVoiceError. The context is left when
the host closes or loads another one: an `Engine` closes itself then, `nullcontext(engine)` leaves it to its
owner."""


@runtime_checkable
class RemoteEngine(Protocol):
    """Holds a conversation in an engine that is not in this process."""

    def converse(self, port: SlotPort, *, has_history: bool) -> None:
        """Carry out jobs until the port is over. Blocks; engine thread.

        `has_history`: another engine held a conversation before, of which this one knows nothing. Raises
        MossVoiceError where there is no engine, or none any more.
        """


EngineSource = Callable[[], "AbstractContextManager[Engine] | RemoteEngine"]
"""An `EngineFactory`, or what makes a remote engine."""
