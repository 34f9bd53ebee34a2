"""The CUDA stream of an engine, with timing.

In: work to enqueue. Out: the completed work, with its duration on the device. TensorRT requires a non-default
stream; events measure a step only on the stream that it runs on. Without a GPU work runs synchronously and is
not measured. Engine thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


class EngineStream:
    """See the module."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._begin, self._end = (
            torch.cuda.Event(enable_timing=True) if self.stream is not None else None for _ in range(2)
        )
        self.last_ms: float | None = None
        """Device time of the last measured work in milliseconds; None without a GPU."""

    @property
    def handle(self) -> int:
        """The raw stream handle for TensorRT."""
        return 0 if self.stream is None else int(self.stream.cuda_stream)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Make this stream current, ordered after earlier work; synchronizes at the end."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            try:
                yield
            finally:
                self.stream.synchronize()

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Inside `working`: measure the work enqueued here; call `read_time` after `working`."""
        self.last_ms = None
        if self._begin is not None:
            self._begin.record(self.stream)
        yield
        if self._end is not None:
            self._end.record(self.stream)

    def read_time(self) -> None:
        """Set `last_ms`. The stream must be synchronized."""
        if self._begin is not None and self._end is not None:
            self.last_ms = self._begin.elapsed_time(self._end)
