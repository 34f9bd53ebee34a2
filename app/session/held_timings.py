"""Durations of one reply: of a speculative one held until it is confirmed, of another one kept beside.

In: timing events of the engine. Out: the same events on another bus. Any thread.
"""

from __future__ import annotations

import threading

from engine_runtime.timing import TimingBus, TimingEvent

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


class HeldTimings(TimingBus):
    """A bus that keeps its events until `release`, and passes them on from then on."""

    def __init__(self, target: TimingBus) -> None:
        super().__init__(target.clock_ns)
        self._target = target
        self._events: list[TimingEvent] = []
        self._is_released = False
        self._order = threading.Lock()
        self.subscribe(self._take)

    def count(self, name: str) -> int:
        """How many events of this name are held."""
        with self._order:
            return sum(event.name == name for event in self._events)

    def release(self) -> None:
        """Pass on all events: the reply is heard."""
        with self._order:
            for event in self._events:
                self._target.publish(event)
            self._events.clear()
            self._is_released = True

    def _take(self, event: TimingEvent) -> None:
        with self._order:
            if self._is_released:
                self._target.publish(event)
            else:
                self._events.append(event)
