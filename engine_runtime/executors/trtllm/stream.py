"""The stream that an engine runs on, and the time that it takes there.

In: work to enqueue. Out: the same work done, with its duration on the device. TensorRT wants a stream that is
not the default one; events measure a step only on the stream that it runs on. Without a GPU work is done when
it is called, and nothing is measured. Engine thread.
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
        """Milliseconds on the device between `begin` and `end` of the last work; None without a GPU."""

    @property
    def handle(self) -> int:
        """What TensorRT takes."""
        return 0 if self.stream is None else int(self.stream.cuda_stream)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Inside, torch works on this stream, after all that was started before; at the end it is done."""
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
        """Inside `working`: what is enqueued here is measured; `read_time` tells after `working`."""
        self.last_ms = None
        if self._begin is not None:
            self._begin.record(self.stream)
        yield
        if self._end is not None:
            self._end.record(self.stream)

    def read_time(self) -> None:
        """Set `last_ms`. The stream must have come to its end."""
        if self._begin is not None and self._end is not None:
            self.last_ms = self._begin.elapsed_time(self._end)
