"""CUDA graphs of functions with fixed tensor shapes. On other devices: the functions themselves.

In: a key, a function and its tensors. Out: the function's result. The first call with a key captures the
function, later ones copy their tensors into the buffers of the graph and replay it: one launch instead of
thousands. A function may modify its own buffers in place (caches); it must not read a tensor back to the
host, nor depend on a Python value that is not part of the key.

The graphs of one `GraphedCalls` share a memory pool and a cuBLAS workspace, so only one of them may run at a
time. Calls from another stream wait for the last one. Overlapping work (language model, codec) needs one
`GraphedCalls` with its own stream each. A capture allocates memory; if the device has too little, the
function runs eagerly. Runs in the thread of its caller.
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

from engine_runtime.cuda.transfer import pinned, sent

_log = logging.getLogger(__name__)

Outputs = TypeVar("Outputs")

_WARM_UP_RUNS = 2
"""Runs before a capture: libraries choose algorithms and allocate workspaces, which a capture must not
contain."""

_capture_lock = threading.Lock()


def padded_size(count: int) -> int:
    """Size of the captured call for this many tokens or streams: the next power of two, so that few are
    captured."""
    return 1 << (count - 1).bit_length()


@contextmanager
def captured(
    graph: torch.cuda.CUDAGraph, pool: Any = None, stream: torch.cuda.Stream | None = None
) -> Iterator[None]:
    """Capture the work launched inside into `graph`.

    The garbage collector is disabled meanwhile: it could destroy graphs of an earlier engine, which
    invalidates the current capture.
    """
    with _capture_lock:
        collects = gc.isenabled()
        gc.disable()
        try:
            # thread_local: another thread (a second engine, a profiler) may use the device concurrently
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                yield
        finally:
            if collects:
                gc.enable()


@dataclass(frozen=True, slots=True)
class _CapturedGraph:
    graph: torch.cuda.CUDAGraph
    function: Callable[..., Any]
    """Kept alive, because every replay reads its tensors at their captured addresses."""
    inputs: tuple[Tensor, ...]
    outputs: Any


class GraphedCalls:
    def __init__(
        self, device: torch.device | str, *, enabled: bool = True, stream: torch.cuda.Stream | None = None
    ) -> None:
        """`stream` is the capture stream, by default a new one; without `enabled`, nothing is captured."""
        self.device = torch.device(device)
        self.is_capturing = enabled and self.device.type == "cuda"
        self._graphs_by_key: dict[Hashable, _CapturedGraph | None] = {}
        """None for a key whose capture ran out of memory."""
        self._warm: set[Hashable] = set()
        """Kinds of calls that were captured once."""
        self._pool: Any = None
        self._stream = stream
        self._last: torch.cuda.Stream | None = None

    @property
    def num_captured(self) -> int:
        """Number of captured graphs."""
        return sum(graph is not None for graph in self._graphs_by_key.values())

    def run(
        self,
        key: Hashable,
        function: Callable[..., Outputs],
        *inputs: Tensor,
        changes: Sequence[Tensor] = (),
        kind: Hashable = None,
    ) -> Outputs:
        """function(*inputs), with inputs on the device. The outputs of a captured graph are its buffers:
        valid until the key's next call.

        The first function of a key is kept: `key` must identify everything it refers to, weights included.

        `changes` are the buffers that the function modifies non-idempotently (a running state, not a cache
        entry at a fixed position); they are restored after the warm-up runs.

        Calls of one `kind` launch the same kernels on tensors of the same shapes, be it at other addresses or
        another number of times. Only the first of them is run before its capture, which takes two thirds of
        the time.
        """
        if not self.is_capturing:
            return self._launched(function, inputs)
        current = torch.cuda.current_stream(self.device)
        if self._last is not None and self._last != current:
            # All graphs share a memory pool: one that starts on another stream before the last one ended
            # would overwrite its intermediate values.
            current.wait_stream(self._last)
        self._last = current
        with torch.inference_mode():
            if key not in self._graphs_by_key:
                self._graphs_by_key[key] = self._capture(function, inputs, changes, kind)
            graph = self._graphs_by_key[key]
            if graph is None:
                return self._launched(function, inputs)
            for buffer, value in zip(graph.inputs, inputs, strict=True):
                buffer.copy_(pinned(value, self.device), non_blocking=True)
            graph.graph.replay()
            return graph.outputs  # type: ignore[no-any-return]

    def has_graph(self, key: Hashable) -> bool:
        """Whether `run` replays a graph for this key, or captures none at all."""
        return not self.is_capturing or self._graphs_by_key.get(key) is not None

    def run_copied(self, key: Hashable, function: Callable[..., Outputs], *inputs: Tensor) -> Outputs:
        """Like `run`, for outputs (a tensor, or a tuple of them) that are kept beyond the key's next call."""
        outputs: Any = self.run(key, function, *inputs)
        if isinstance(outputs, Tensor):
            return outputs.clone()  # type: ignore[return-value]
        return tuple(value.clone() for value in outputs)  # type: ignore[return-value]

    def _launched(self, function: Callable[..., Outputs], inputs: tuple[Tensor, ...]) -> Outputs:
        return function(*(sent(value, self.device) for value in inputs))

    def clear(self) -> None:
        """Drop all captured graphs and their memory."""
        self._graphs_by_key.clear()

    def forget(self, concerns: Callable[[Hashable], bool]) -> None:
        """Drop the captured graphs with matching keys and their memory. Synchronizes with the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # one of them may still run
        for key in [key for key in self._graphs_by_key if concerns(key)]:
            del self._graphs_by_key[key]

    def _capture(
        self,
        function: Callable[..., Any],
        inputs: tuple[Tensor, ...],
        changes: Sequence[Tensor],
        kind: Hashable,
    ) -> _CapturedGraph | None:
        before = [value.clone() for value in changes]
        runs = 0 if kind in self._warm else _WARM_UP_RUNS
        try:
            graph = self._capture_graph(function, inputs, changes, before, runs)
            if kind is not None:
                self._warm.add(kind)
            return graph
        except torch.OutOfMemoryError:
            _log.info("Too little memory to capture another CUDA graph; kernels are launched one by one")
        # Outside of the except block: the traceback of the error keeps the tensors of the failed capture
        # alive.
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
        warm_up_runs: int,
    ) -> _CapturedGraph:
        """`before` holds the original content of `changes`."""
        current = torch.cuda.current_stream(self.device)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
            self._stream = self._stream or torch.cuda.Stream(self.device)
        stream = self._stream
        buffers = tuple(value.to(self.device, copy=True) for value in inputs)
        stream.wait_stream(current)  # type: ignore[union-attr]
        with torch.cuda.stream(stream):
            for _ in range(warm_up_runs):
                function(*buffers)
                for value, kept in zip(changes, before, strict=True):
                    # The warm-up runs have advanced the state of the stream; the capture itself computes
                    # nothing.
                    value.copy_(kept)
        graph = torch.cuda.CUDAGraph()
        with captured(graph, self._pool, stream):
            outputs = function(*buffers)
        current.wait_stream(stream)  # type: ignore[arg-type]
        return _CapturedGraph(graph, function, buffers, outputs)
