"""A microphone that hears a script from its opening on; it acts at given times of the session's clock."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from app.audio.ring import Ring
from engine_runtime.types import Pcm

RATE = 16_000
Act = tuple[float, Callable[[], None]]


class ScriptedMicrophone:
    """Captures `pcm`, then silence. Sound arrives `latency_s` after it was in the air. While the microphone
    is closed the script waits."""

    def __init__(self, *pcm: Pcm, latency_s: float = 0.0) -> None:
        self.sample_rate = RATE
        self.ring = Ring(2 * RATE)
        self.name = ""
        self.latency_s = latency_s
        self.dropped_samples = 0
        self.acts: list[Act] = []
        """(seconds since the opening, what happens then), in order."""
        self.opened = 0
        self._pcm = np.concatenate([np.zeros(0, dtype=np.float32), *pcm])
        self._origin_ns: int | None = None
        self._count = 0

    def open(self, device: str | None, latency_s: float) -> None:
        self.name = "script"
        self.opened += 1
        self._origin_ns = None

    def close(self) -> None:
        self.name = ""

    def is_lost(self) -> bool:
        return False

    def service(self, now_ns: int) -> None:
        """Capture up to now, and act."""
        if not self.name:
            return
        if self._origin_ns is None:
            self._origin_ns = now_ns - round(self._count * 1e9 / RATE)
        elapsed_s = (now_ns - self._origin_ns) / 1e9
        while self.acts and self.acts[0][0] <= elapsed_s:
            self.acts.pop(0)[1]()
        due = int((elapsed_s - self.latency_s) * RATE) - self._count
        if due > 0:
            said, self._pcm = self._pcm[:due], self._pcm[due:]
            self.ring.write(np.pad(said, (0, due - len(said))))
            self._count += due

    def sample_time_ns(self, index: float) -> int:
        return (self._origin_ns or 0) + round(index * 1e9 / RATE)
