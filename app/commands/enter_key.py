"""The Enter key of a terminal as the button of push-to-talk: one press holds it, the next releases it.

In: lines on standard input, which are not waited for, and the events of the session. Out: `HoldToTalk`. A
terminal does not report when a key is released. Main thread.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable

from app.session.commands import Command, HoldToTalk
from app.session.events import (
    ErrorRaised,
    Event,
    TurnCancelled,
    TurnCommitted,
)

_STDIN = 0


class EnterKey:
    """At the end of the input the state does not change."""

    def __init__(self, stream: int = _STDIN) -> None:
        self._stream = stream
        self._is_open = True
        self.is_down = False

    def service(self, send: Callable[[Command], None]) -> bool:
        """Send the presses since the last call; returns whether there were any."""
        presses = self._presses()
        for _ in range(presses):
            self.is_down = not self.is_down
            send(HoldToTalk(self.is_down))
        return presses > 0

    def follow(self, event: Event) -> None:
        """A turn that ended by its length, or could not begin, needs no release."""
        if isinstance(event, TurnCommitted | TurnCancelled | ErrorRaised):
            self.is_down = False

    def _presses(self) -> int:
        if not self._is_open or not select.select([self._stream], [], [], 0)[0]:
            return 0
        read = os.read(self._stream, 4_096)
        self._is_open = bool(read)
        return read.count(b"\n")
