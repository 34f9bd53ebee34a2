"""Timing bus: every duration of the pipeline as one event, from any thread to any listener.

In: `emit(...)` or `span(...)` in a stage. Out: listeners called in the emitting thread; they must not block
(a GUI appends to a deque and draws later). A negative duration is a defect of the clock that measured it: it
is logged as an error and reaches no listener, so that it cannot hide in a percentile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

REPLY_STAGES = ("prefill", "step", "token2mel", "vocoder")
"""Names of the stages of a reply."""
STAGE_FIGURES = ("tokens", "tokens_at_commit", "audio_ms")
"""Attributes of stages that are figures of the latency view."""
REPLY_FIGURES = ("rtf_total", "rtf_steady", "first_chunk_ratio", "flow_steps", "memory_gb")
"""Attributes of a whole reply that are figures of the latency view."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TimingEvent:
    """One measured span. `name` is one of the terms of the latency table (prefill, step, token2mel, ...)."""

    name: str
    turn_id: int
    start_ns: int
    duration_ns: int
    thread: str
    attributes: dict[str, float | int | str] = field(default_factory=dict)

    @property
    def duration_ms(self) -> float:
        """Duration in milliseconds."""
        return self.duration_ns / 1e6


Listener = Callable[[TimingEvent], None]


class TimingBus:
    """Fan-out of timing events. Listeners may come and go at any time."""

    def __init__(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.clock_ns = clock_ns
        self._listeners: tuple[Listener, ...] = ()
        self._lock = threading.Lock()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Add a listener; the returned function removes it."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def unsubscribe() -> None:
            with self._lock:
                self._listeners = tuple(known for known in self._listeners if known is not listener)

        return unsubscribe

    def emit(
        self, name: str, turn_id: int, start_ns: int, duration_ns: int, **attributes: float | int | str
    ) -> TimingEvent:
        """Publish a span that was measured by the caller."""
        event = TimingEvent(name, turn_id, start_ns, duration_ns, threading.current_thread().name, attributes)
        self.publish(event)
        return event

    def publish(self, event: TimingEvent) -> None:
        """Publish an event that another bus took."""
        if event.duration_ns < 0:
            _log.error("%s of turn %d took %.3f ms: dropped", event.name, event.turn_id, event.duration_ms)
            return
        for listener in self._listeners:
            listener(event)

    @contextmanager
    def span(
        self, name: str, turn_id: int, **attributes: float | int | str
    ) -> Iterator[dict[str, float | int | str]]:
        """Measure a block; the yielded dict takes attributes that are known only at its end."""
        start_ns = self.clock_ns()
        yield attributes
        self.emit(name, turn_id, start_ns, self.clock_ns() - start_ns, **attributes)
