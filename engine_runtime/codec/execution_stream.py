"""Where the voice of a reply is made: in step with the language model, or beside it on a CUDA stream.

In: pieces of work, and tensors that they leave. Out: how long each took, and the values on the host, when
they are there. `HostExecution` does the work at once and waits for it; `StreamExecution` puts it on a stream
of its own and comes back, so that the next decode steps run meanwhile; values come through pinned memory.
Times on the stream are those of CUDA events, on the clock of the timing bus. Used by the engine thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine_runtime.types import Pcm


class Span(Protocol):
    """When a piece of work ran; ask only when what it left has arrived."""

    def times(self) -> tuple[int, int]:
        """Start and duration in ns, on the clock of the execution stream."""


class PendingCopy(Protocol):
    """A tensor on its way to the host."""

    def is_here(self) -> bool:
        """Whether `value` would not wait."""

    def value(self) -> Pcm:
        """The values; waits for them."""


class ExecutionStream(Protocol):
    """See the module."""

    def stage(self) -> AbstractContextManager[Span]:
        """Work in a `with` block; everything that touches the device belongs into one. Gives its `Span`."""

    def fetch(self, tensor: Tensor) -> PendingCopy:
        """Bring a float32 tensor [n] to the host; called within the stage that made it."""


NewExecutionStream = Callable[[Callable[[], int]], ExecutionStream]
"""Makes the execution stream of one reply, given the clock in ns."""


@dataclass(slots=True)
class HostSpan:
    """Times taken on the host."""

    start_ns: int
    duration_ns: int = 0

    def times(self) -> tuple[int, int]:
        """See `Span`."""
        return self.start_ns, self.duration_ns


@dataclass(frozen=True, slots=True)
class HostCopy:
    """Values that are there."""

    pcm: Pcm

    def is_here(self) -> bool:
        """See `PendingCopy`."""
        return True

    def value(self) -> Pcm:
        """See `PendingCopy`."""
        return self.pcm


class HostExecution:
    """One thing after the other."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns

    @contextmanager
    def stage(self) -> Iterator[HostSpan]:
        """See `ExecutionStream`. On an accelerator the time of a stage whose values are not fetched in it
        counts to the next one."""
        span = HostSpan(self._clock_ns())
        yield span
        span.duration_ns = self._clock_ns() - span.start_ns

    def fetch(self, tensor: Tensor) -> HostCopy:
        """See `ExecutionStream`."""
        return HostCopy(tensor.cpu().numpy())


@dataclass(frozen=True, slots=True)
class _StreamSpan:
    begun_ns: int
    """Of `origin`, on the host's clock."""
    origin: torch.cuda.Event
    start: torch.cuda.Event
    end: torch.cuda.Event

    def times(self) -> tuple[int, int]:
        offset_ms, duration_ms = self.origin.elapsed_time(self.start), self.start.elapsed_time(self.end)
        return self.begun_ns + round(offset_ms * 1e6), round(duration_ms * 1e6)


@dataclass(frozen=True, slots=True)
class _StreamCopy:
    host: Tensor  # pinned
    event: torch.cuda.Event

    def is_here(self) -> bool:
        return bool(self.event.query())

    def value(self) -> Pcm:
        self.event.synchronize()
        return self.host.numpy().copy()  # the pinned memory is lent again as soon as nobody refers to it


class StreamExecution:
    """Work on a CUDA stream. Made for one reply: its times count from its making, when the device is waited
    for once."""

    def __init__(self, stream: torch.cuda.Stream, clock_ns: Callable[[], int]) -> None:
        self._stream = stream
        stream.wait_stream(torch.cuda.current_stream(stream.device))  # what was loaded or reset there
        self._origin = torch.cuda.Event(enable_timing=True)
        self._origin.record(stream)
        self._origin.synchronize()
        self._begun_ns = clock_ns()

    @contextmanager
    def stage(self) -> Iterator[_StreamSpan]:
        """See `ExecutionStream`."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self._stream):
            start.record(self._stream)
            yield _StreamSpan(self._begun_ns, self._origin, start, end)
            end.record(self._stream)

    def fetch(self, tensor: Tensor) -> _StreamCopy:
        """See `ExecutionStream`."""
        host = torch.empty(tensor.shape, dtype=torch.float32, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        event = torch.cuda.Event()
        event.record(self._stream)
        return _StreamCopy(host, event)
