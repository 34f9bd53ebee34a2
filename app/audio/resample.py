"""Sample-rate conversion of one audio stream, between device and model rates.

In: PCM blocks of any size. Out: PCM at the other rate, later by the filter's delay but not shifted: sample n
of the output belongs to time n / out_rate. State is kept across blocks. Any one thread.
"""

from __future__ import annotations

import atexit
from typing import Literal, cast
from weakref import WeakSet

import numpy as np
import soxr

from engine_runtime.types import Pcm

Quality = Literal["LQ", "MQ", "HQ", "VHQ"]
_resamplers: WeakSet[Resampler] = WeakSet()


class Resampler:
    """A soxr stream with the equal-rate case passed through."""

    def __init__(self, in_rate: int, out_rate: int, quality: Quality = "HQ") -> None:
        """Rates in Hz. From 48 to 16 kHz "HQ" lags by about 24 ms, "LQ" by about 12 ms."""
        if in_rate <= 0 or out_rate <= 0:
            raise ValueError(f"rates must be above 0, got {in_rate} and {out_rate}")
        self.in_rate = in_rate
        self.out_rate = out_rate
        self._quality = quality
        self._stream: soxr.ResampleStream | None = None
        """Opened by the first block: a commit resets the stream, and must not wait for the next one."""
        _resamplers.add(self)

    def push(self, pcm: Pcm) -> Pcm:
        """Convert the next block [n]; the result may be shorter than its share, or empty."""
        if self.in_rate == self.out_rate:
            return pcm
        if self._stream is None:
            self._stream = soxr.ResampleStream(
                self.in_rate, self.out_rate, num_channels=1, dtype="float32", quality=self._quality
            )
        return cast(Pcm, self._stream.resample_chunk(np.ascontiguousarray(pcm, dtype=np.float32)))

    def finish(self) -> Pcm:
        """The remaining output of the filter; resets the stream."""
        if self._stream is None:
            return np.zeros(0, dtype=np.float32)
        rest = cast(Pcm, self._stream.resample_chunk(np.zeros(0, dtype=np.float32), last=True))
        self.reset()
        return rest

    def input_samples(self, out_samples: int) -> int:
        """Input samples that have started once `out_samples` of the output were played."""
        return -(-out_samples * self.in_rate // self.out_rate)

    def reset(self) -> None:
        """Forget everything pushed so far."""
        self._stream = None


@atexit.register
def _release_streams() -> None:
    """A closed window keeps what it has used until the interpreter has ended, and soxr prints a warning about
    streams that live as long."""
    for resampler in list(_resamplers):
        resampler._stream = None
