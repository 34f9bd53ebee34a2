"""Execution streams of the codec: synchronous on the host, or asynchronous on a CUDA stream beside the
language model.

In: stages of work, and their result tensors. Out: start and duration of each stage, and the values on the
host once they have arrived. `HostExecution` runs the work synchronously; `StreamExecution` enqueues it on its
own stream and returns, so that the next decode steps run concurrently; values are copied through pinned
memory. Times on the stream are measured with CUDA events, on the clock of the timing bus. Used by the engine
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from engine_runtime.types import Pcm
from engine_runtime.work import Stage, Work


class StageTimer(Protocol):
    """The times of a stage; valid once its results have arrived."""

    def times(self) -> tuple[int, int]:
        """Start and duration in ns, on the clock of the execution stream."""


class PendingCopy(Protocol):
    """A pending copy of a tensor to the host."""

    def is_here(self) -> bool:
        """Whether the copy is complete, so that `value` does not wait."""

    def value(self) -> Pcm:
        """The values; waits for the copy."""


class ExecutionStream(Protocol):
    def stage(self) -> AbstractContextManager[StageTimer]:
        """Context manager around all work on the device; returns the `StageTimer` of the stage."""

    def current(self) -> AbstractContextManager[object]:
        """Context manager around other work on the device, which is not measured."""

    def fetch(self, tensor: Tensor) -> PendingCopy:
        """Copy a float32 tensor [n] to the host; called within the stage that computed it."""


NewExecutionStream = Callable[[Callable[[], int]], ExecutionStream]
"""Creates the execution stream of one reply, given the clock in ns."""


@dataclass(slots=True)
class HostSpan:
    """Times measured on the host."""

    start_ns: int
    duration_ns: int = 0

    def times(self) -> tuple[int, int]:
        return self.start_ns, self.duration_ns


@dataclass(frozen=True, slots=True)
class HostCopy:
    """Values that are already on the host."""

    pcm: Pcm

    def is_here(self) -> bool:
        return True

    def value(self) -> Pcm:
        return self.pcm


@dataclass(frozen=True, slots=True, eq=False)
class StreamWork(Work[tuple[Any, StageTimer]]):
    """Work on an execution stream: its result with the times of its stage. With `is_fetched` the result is
    copied to the host. Works of different streams of a device run together on that of the first."""

    work: Work[Any]
    stream: ExecutionStream
    is_fetched: bool = False

    @property
    def stage(self) -> Stage:
        return self.work.stage

    @property
    def is_ready(self) -> bool:
        return self.work.is_ready

    @property
    def batch_key(self) -> Hashable:
        return self.work.batch_key

    def waits_for_memory(self, beside: Sequence[StreamWork] = ()) -> bool:
        return self.work.waits_for_memory([other.work for other in beside])

    def fits(self, batch: Sequence[StreamWork]) -> bool:
        return self.work.fits([other.work for other in batch])

    def run(self) -> tuple[Any, StageTimer]:
        with self.stream.stage() as timer:
            return self._given(self.work.run()), timer

    def run_together(self, batch: Sequence[StreamWork]) -> list[tuple[Any, StageTimer]]:
        with self.stream.stage() as timer:
            results = self.work.run_together([other.work for other in batch])
            return [(other._given(result), timer) for other, result in zip(batch, results, strict=True)]

    def _given(self, result: Any) -> Any:
        return self.stream.fetch(result) if self.is_fetched else result


@dataclass(frozen=True, slots=True, eq=False)
class ArrivalWork(Work[Pcm]):
    """Waiting for a copy to the host; its result is the values."""

    copy: PendingCopy

    @property
    def stage(self) -> Stage:
        return "arrival"

    @property
    def batch_key(self) -> Hashable:
        return "arrival"

    @property
    def is_ready(self) -> bool:
        return self.copy.is_here()

    def fits(self, batch: Sequence[Any]) -> bool:
        return True

    def run(self) -> Pcm:
        return self.copy.value()


class HostExecution:
    """Runs stages synchronously."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns

    @contextmanager
    def stage(self) -> Iterator[HostSpan]:
        """On an accelerator the time of a stage that fetches no values is attributed
        to the next one."""
        span = HostSpan(self._clock_ns())
        yield span
        span.duration_ns = self._clock_ns() - span.start_ns

    def current(self) -> AbstractContextManager[object]:
        return nullcontext()

    def fetch(self, tensor: Tensor) -> HostCopy:
        return HostCopy(tensor.cpu().numpy())


@dataclass(frozen=True, slots=True)
class _StreamSpan:
    begun_ns: int
    """Time of `origin` on the host's clock."""
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
        return (
            self.host.numpy().copy()
        )  # a copy, because the allocator reuses pinned memory once it is unreferenced


class StreamExecution:
    """Runs stages on a CUDA stream. One per reply: the constructor synchronizes once to set the origin of its
    times, with the stream `idle`, on which nothing else runs."""

    def __init__(
        self, stream: torch.cuda.Stream, idle: torch.cuda.Stream, clock_ns: Callable[[], int]
    ) -> None:
        self._stream = stream
        stream.wait_stream(
            torch.cuda.current_stream(stream.device)
        )  # for tensors loaded or reset on that stream
        self._origin = torch.cuda.Event(enable_timing=True)
        self._origin.record(idle)
        self._origin.synchronize()
        self._begun_ns = clock_ns()

    @contextmanager
    def stage(self) -> Iterator[_StreamSpan]:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self._stream):
            start.record(self._stream)
            yield _StreamSpan(self._begun_ns, self._origin, start, end)
            end.record(self._stream)

    def current(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)

    def fetch(self, tensor: Tensor) -> _StreamCopy:
        host = torch.empty(tensor.shape, dtype=torch.float32, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        event = torch.cuda.Event()
        event.record(self._stream)
        return _StreamCopy(host, event)
