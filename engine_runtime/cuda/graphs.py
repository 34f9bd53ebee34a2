"""CUDA graphs of functions whose tensors always have the same shapes. Elsewhere: the functions themselves.

In: a key, a function and its tensors. Out: what the function returns. The first call with a key captures the
function, later ones copy their tensors into the buffers of the graph and replay it: one launch instead of
thousands. A function may change buffers of its own in place (caches); it must not read a tensor back to the
host, nor depend on a Python value that is not part of the key.

One `GraphedCalls` belongs to one strand of work: its graphs share one memory pool and one cuBLAS workspace,
so only one of them may run at a time. Calls from another stream wait for the last one. Work that shall
overlap (language model, codec) needs a `GraphedCalls` with a stream of its own for each. A capture takes
memory of its own; where the device has none left for it, the function itself runs. Runs in the thread of its
caller.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

_log = logging.getLogger(__name__)

Outputs = TypeVar("Outputs")

_WARM_UP_RUNS = 2
"""Runs before a capture: libraries choose algorithms and allocate workspaces, which it must not do."""

_capture_lock = threading.Lock()


@contextmanager
def captured(
    graph: torch.cuda.CUDAGraph, pool: Any = None, stream: torch.cuda.Stream | None = None
) -> Iterator[None]:
    """What is launched inside becomes `graph`.

    The garbage collector waits: the graphs of an engine that is gone could be among what it finds, and
    destroying one invalidates the capture under way.
    """
    with _capture_lock:
        collects = gc.isenabled()
        gc.disable()
        try:
            # thread_local: another thread (a second engine, a profiler) may use the device meanwhile
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                yield
        finally:
            if collects:
                gc.enable()


@dataclass(frozen=True, slots=True)
class _CapturedGraph:
    graph: torch.cuda.CUDAGraph
    function: Callable[..., Any]
    """Kept, since what it refers to is read at its old place at every replay."""
    inputs: tuple[Tensor, ...]
    outputs: Any


class GraphedCalls:
    """See the module."""

    def __init__(
        self, device: torch.device | str, *, enabled: bool = True, stream: torch.cuda.Stream | None = None
    ) -> None:
        """`stream` is where graphs are captured, by default one of their own; not `enabled`: none is
        captured."""
        self.device = torch.device(device)
        self.is_capturing = enabled and self.device.type == "cuda"
        self._graphs_by_key: dict[Hashable, _CapturedGraph | None] = {}
        """None for what there was no memory to capture."""
        self._pool: Any = None
        self._stream = stream
        self._last: torch.cuda.Stream | None = None

    @property
    def num_captured(self) -> int:
        """Graphs captured so far."""
        return sum(graph is not None for graph in self._graphs_by_key.values())

    def run(
        self,
        key: Hashable,
        function: Callable[..., Outputs],
        *inputs: Tensor,
        changes: Sequence[Tensor] = (),
    ) -> Outputs:
        """function(*inputs), these on the device. The outputs of a captured graph are its buffers: valid
        until the key's next call.

        The first function of a key stays: `key` must name whatever it refers to, weights included.

        `changes` are the buffers that the function changes in such a way that running it twice is not as
        running it once (a running state, not a cache entry at a given place); they are put back after the
        warm-up runs.
        """
        if not self.is_capturing:
            return self._launched(function, inputs)
        current = torch.cuda.current_stream(self.device)
        if self._last is not None and self._last != current:
            current.wait_stream(self._last)
        self._last = current
        with torch.inference_mode():
            if key not in self._graphs_by_key:
                self._graphs_by_key[key] = self._capture(function, inputs, changes)
            graph = self._graphs_by_key[key]
            if graph is None:
                return self._launched(function, inputs)
            for buffer, value in zip(graph.inputs, inputs, strict=True):
                buffer.copy_(value, non_blocking=True)
            graph.graph.replay()
            return graph.outputs  # type: ignore[no-any-return]

    def run_copied(self, key: Hashable, function: Callable[..., Outputs], *inputs: Tensor) -> Outputs:
        """As `run`, for outputs (a tensor, or a tuple of them) that are kept beyond the key's next call."""
        outputs: Any = self.run(key, function, *inputs)
        if isinstance(outputs, Tensor):
            return outputs.clone()  # type: ignore[return-value]
        return tuple(value.clone() for value in outputs)  # type: ignore[return-value]

    def _launched(self, function: Callable[..., Outputs], inputs: tuple[Tensor, ...]) -> Outputs:
        return function(*(value.to(self.device, non_blocking=True) for value in inputs))

    def clear(self) -> None:
        """Forget all captured graphs, and with them what they keep."""
        self._graphs_by_key.clear()

    def forget(self, concerns: Callable[[Hashable], bool]) -> None:
        """Forget the captured graphs whose key is meant, and with them what they keep. Waits for the
        device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # one of them may still run
        for key in [key for key in self._graphs_by_key if concerns(key)]:
            del self._graphs_by_key[key]

    def _capture(
        self, function: Callable[..., Any], inputs: tuple[Tensor, ...], changes: Sequence[Tensor]
    ) -> _CapturedGraph | None:
        before = [value.clone() for value in changes]
        try:
            return self._capture_graph(function, inputs, changes, before)
        except torch.OutOfMemoryError:
            _log.info("Work is launched piece by piece: there is no memory to capture another graph")
        torch.cuda.empty_cache()
        if self._stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._stream)
        for value, kept in zip(changes, before, strict=True):
            value.copy_(kept)
        return None

    def _capture_graph(
        self,
        function: Callable[..., Any],
        inputs: tuple[Tensor, ...],
        changes: Sequence[Tensor],
        before: Sequence[Tensor],
    ) -> _CapturedGraph:
        """`before` is what `changes` hold."""
        current = torch.cuda.current_stream(self.device)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
            self._stream = self._stream or torch.cuda.Stream(self.device)
        stream = self._stream
        buffers = tuple(value.to(self.device, copy=True) for value in inputs)
        stream.wait_stream(current)  # type: ignore[union-attr]
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_RUNS):
                function(*buffers)
                for value, kept in zip(changes, before, strict=True):
                    value.copy_(kept)
        graph = torch.cuda.CUDAGraph()
        with captured(graph, self._pool, stream):
            outputs = function(*buffers)
        current.wait_stream(stream)  # type: ignore[arg-type]
        return _CapturedGraph(graph, function, buffers, outputs)
