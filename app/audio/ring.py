"""Fixed ring of samples between an audio callback and the dialog thread.

One producer and one consumer, each in its own thread, without a lock: only the producer advances `written`,
only the consumer advances `consumed`, and samples are copied before the counter that publishes them is
advanced. After construction only `read` allocates. `PlaybackRing` can also be paused and discarded.
"""

from __future__ import annotations

import numpy as np

from engine_runtime.types import Pcm


class Ring:
    """Single-producer single-consumer ring of float32 samples with counters that never wrap."""

    __slots__ = ("_mask", "_samples", "capacity", "consumed", "dropped", "written")

    def __init__(self, capacity_samples: int) -> None:
        """Make a ring that holds at least `capacity_samples` (rounded up to a power of two)."""
        if capacity_samples < 1:
            raise ValueError(f"a ring needs room for at least one sample, got {capacity_samples}")
        # A power of two, so that a counter that never wraps becomes a place by one mask.
        self.capacity = 1 << (capacity_samples - 1).bit_length()
        self._mask = self.capacity - 1
        self._samples = np.zeros(self.capacity, dtype=np.float32)
        self.written = 0
        """Samples accepted so far; moved by the producer."""
        self.consumed = 0
        """Samples read or discarded so far; moved by the consumer."""
        self.dropped = 0
        """Samples that found no room; counted by the producer."""

    @property
    def available(self) -> int:
        """Samples that can be read now."""
        return self.written - self.consumed

    @property
    def free(self) -> int:
        """Samples that can be written now."""
        return self.capacity - (self.written - self.consumed)

    def write(self, block: Pcm) -> int:
        """Producer: append `block` [n]; samples that do not fit are dropped and counted. Returns the samples
        accepted."""
        count = min(len(block), self.free)
        start = self.written & self._mask
        first = min(count, self.capacity - start)
        self._samples[start : start + first] = block[:first]
        self._samples[: count - first] = block[first:count]
        # NOTE: last. This is what publishes the samples to the other thread; moved up, the consumer would
        # read old ones.
        self.written += count
        self.dropped += len(block) - count
        return count

    def read_into(self, out: Pcm) -> int:
        """Consumer: fill the front of `out` [n]; returns how many samples there were. The rest is not
        touched."""
        count = min(len(out), self.written - self.consumed)
        self._copy(out[:count], self.consumed)
        # NOTE: after the copy. Before it, the producer could overwrite what is still being copied.
        self.consumed += count
        return count

    def read(self, max_samples: int) -> Pcm:
        """Consumer: up to `max_samples` as a new array."""
        out = np.empty(min(max_samples, self.written - self.consumed), dtype=np.float32)
        return out[: self.read_into(out)]

    def recent(self, count: int) -> Pcm:
        """Producer: up to `count` samples that the consumer took last, as a new array."""
        end = self.consumed
        start = max(end - count, self.written - self.capacity, 0)
        out = np.empty(max(end - start, 0), dtype=np.float32)
        return np.take(self._samples, np.arange(start, end), mode="wrap", out=out)

    def _copy(self, out: Pcm, index: int) -> None:
        """Consumer: the samples from `index` on, without taking them."""
        start = index & self._mask
        first = min(len(out), self.capacity - start)
        out[:first] = self._samples[start : start + first]
        out[first:] = self._samples[: len(out) - first]
