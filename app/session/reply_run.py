"""A reply while it is made: its events on their way to the dialog thread.

In: the events of `Turn.commit`. Out: results. Until it is confirmed, a speculative reply is made only as far
as playback would buffer it, so that little work is discarded: nothing beyond the prediction where that is
that the user has not finished. Engine thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from app.session.engine_jobs import HELD_DELTAS, HELD_S, ReplyMade, ReplyResult, Result
from engine_runtime.timing import TimingBus, TimingEvent
from engine_runtime.types import (
    CancelScope,
    ReplyAudio,
    ReplyDone,
    ReplyEvent,
    ReplyText,
    TurnEndPrediction,
)
from engine_runtime.work import Task

if TYPE_CHECKING:  # it imports torch
    from engine_runtime.conversation.reply_events import ReplyEvents


_MOST_KEPT = 1024


class KeptTimings(TimingBus):
    """A bus that passes its events on, and keeps the first of them."""

    def __init__(self, target: TimingBus) -> None:
        super().__init__(target.clock_ns)
        self._target = target
        self._events: list[TimingEvent] = []
        self.subscribe(self._take)

    @property
    def events(self) -> tuple[TimingEvent, ...]:
        """Those kept so far."""
        return tuple(self._events)

    def _take(self, event: TimingEvent) -> None:
        self._target.publish(event)
        if len(self._events) < _MOST_KEPT:
            self._events.append(event)


class ReplyRun:
    """One commit and the events of its reply."""

    def __init__(
        self,
        scope: CancelScope,
        events: ReplyEvents,
        *,
        is_speculative: bool,
        finished: float = 0.0,
        kept: KeptTimings | None = None,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """`finished` is the least prediction with which a speculative reply is worth making; `kept` has the
        timings that belong to the result."""
        self.is_speculative = is_speculative
        """Set to False when the reply is confirmed."""
        self.work_ns = 0
        """Time spent on the reply, with the time in which others had the device."""
        self.scope = scope
        self._events = events
        self._clock_ns = clock_ns
        self._audio_s = 0.0
        self._deltas = 0
        self._finished = finished
        self._kept = kept
        self._is_unfinished = False

    def step(self, give: Callable[[Result], None]) -> Task[bool]:
        """Make the next event, as a task; returns whether there is more to make now: False at the end, and as
        far as a speculative reply goes."""
        if self._is_enough:
            return False
        began_ns = self._clock_ns()
        try:
            event = yield from self._events.next_event()
        finally:
            self.work_ns += self._clock_ns() - began_ns
        if event is None or self.scope.is_cancelled:
            self._events.close()
            return False
        self._count(event)
        give(ReplyResult(self.scope, event))
        if isinstance(event, ReplyDone) and self._audio_s:
            stages = () if self._kept is None else self._kept.events
            give(ReplyMade(self.work_ns / 1e9 / self._audio_s, stages))
        return not self._is_enough

    def close(self) -> None:
        """Nothing more is wanted of the reply."""
        self._events.close()

    @property
    def _is_enough(self) -> bool:
        if not self.is_speculative:
            return False
        return self._is_unfinished or self._audio_s >= HELD_S or self._deltas >= HELD_DELTAS

    def _count(self, event: ReplyEvent) -> None:
        if isinstance(event, ReplyAudio):
            self._audio_s += len(event.pcm) / event.sample_rate
        elif isinstance(event, ReplyText):
            self._deltas += 1
        elif isinstance(event, TurnEndPrediction):
            self._is_unfinished = event.probability < self._finished
