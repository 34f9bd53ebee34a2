"""ReplyEvents: the events of one reply, as an iterator or, event by event, as tasks.

In: a turn's `advance`, which makes the next events. Out: one event at a time, in order. It is over after a
ReplyDone, when its commit was reverted, and once it is closed. Engine thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Self

from engine_runtime.types import CancelScope, ReplyDone, ReplyEvent
from engine_runtime.work import Task, run_alone


class ReplyEvents:
    """Created by `Turn.commit`."""

    def __init__(
        self,
        commit: CancelScope,
        advance: Callable[[], Task[list[ReplyEvent]]],
        deliver: Callable[[ReplyEvent], bool],
    ) -> None:
        """`advance` returns no events when the commit was reverted; `deliver` notes an event that is about to
        be given, or says that the reply was stopped before it."""
        self._commit, self._advance, self._deliver = commit, advance, deliver
        self._ready: deque[ReplyEvent] = deque()
        self._is_over = False

    def next_event(self) -> Task[ReplyEvent | None]:
        """The next event; None at the end."""
        while not (self._is_over or self._commit.is_cancelled):
            if not self._ready:
                self._ready.extend((yield from self._advance()))
            if self._ready and self._deliver(self._ready[0]):
                event = self._ready.popleft()
                self._is_over = isinstance(event, ReplyDone)
                return event
            self._ready.clear()
        return None

    def close(self) -> None:
        """No further events are wanted."""
        self._is_over = True
        self._ready.clear()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReplyEvent:
        event = run_alone(self.next_event())
        if event is None:
            raise StopIteration
        return event
