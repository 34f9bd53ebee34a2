"""The captured audio around a user turn: pre-roll before it, held-back silence after it.

In: every VAD frame, in order. Out: the samples of a turn, each once: from a little before its first speech,
up to a little after its latest speech; a pause is returned only when speech resumes. Indices count samples
since the start of the stream. Dialog thread.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from engine_runtime.types import Pcm


class UtteranceBuffer:
    """A short history of the stream with a reading position while a turn is open."""

    def __init__(self, keep_samples: int) -> None:
        """Keep `keep_samples` of history and, while a turn is open, all of it that was not taken."""
        self._keep = keep_samples
        self._frames: deque[tuple[int, Pcm]] = deque()
        self._position: int | None = None
        self._taken_to = 0
        self.end = 0
        """Index after the newest sample."""

    def append(self, frame: Pcm) -> None:
        """The next frame of the stream [n]."""
        self._frames.append((self.end, frame))
        self.end += len(frame)
        oldest = self.end - self._keep
        if self._position is not None:
            oldest = min(oldest, self._position)
        while self._frames and self._frames[0][0] + len(self._frames[0][1]) <= oldest:
            self._frames.popleft()

    def open(self, start: int) -> int:
        """A turn starts at sample `start` (or at the oldest one kept, or after the turn before). Returns
        where."""
        first = self._frames[0][0] if self._frames else self.end
        self._position = min(max(start, first, self._taken_to), self.end)
        return self._position

    def take(self, up_to: int) -> Pcm:
        """The turn's samples before index `up_to` that were not taken yet."""
        if self._position is None:
            raise ValueError("no turn is open")
        up_to = min(up_to, self.end)
        pcm = self._between(self._position, up_to)
        self._position = self._taken_to = max(up_to, self._position)
        return pcm

    def since(self, start: int) -> Pcm:
        """The samples from index `start` on, taken or not, as far as they are kept."""
        return self._between(start, self.end)

    def ready(self, up_to: int) -> int:
        """Number of samples that `take(up_to)` would return."""
        return 0 if self._position is None else max(min(up_to, self.end) - self._position, 0)

    def close(self) -> None:
        """End the turn: what was held back is dropped."""
        self._position = None

    def _between(self, first: int, end: int) -> Pcm:
        parts = [
            frame[max(first - start, 0) : end - start]
            for start, frame in self._frames
            if start + len(frame) > first and start < end
        ]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)
