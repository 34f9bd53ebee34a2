"""The captured audio around a user turn, and where speech ends in it.

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


_WINDOWS_PER_S = 100
_RANGE = 0.01
"""40 dB below the loudest window of the turn: quieter sound is not speech."""
_OVER_PAUSE = 2.0
"""6 dB above the noise of the pause: quieter sound does not stand out."""
_LATEST_S = 0.3
"""How long the VAD may be late: Silero is 34 to 90 ms late on the sample questions."""


def speech_end(pcm: Pcm, sample_rate: int, vad_end: int) -> int:
    """Index in `pcm` [n] after the last sample of speech; `vad_end` if nothing stands out before it.

    The VAD finds the end a few frames late, because its network has a memory. Latencies count from the last
    10 ms that stand out from the pause; turn-taking goes by the VAD.
    """
    size = sample_rate // _WINDOWS_PER_S
    pause = pcm[vad_end:]
    spoken = pcm[vad_end % size : vad_end].reshape(-1, size)
    if not len(spoken):
        return vad_end
    levels = np.sqrt(np.mean(np.square(spoken), axis=1))
    noise = float(np.sqrt(np.mean(np.square(pause)))) if len(pause) else 0.0
    latest = levels[-round(_LATEST_S * _WINDOWS_PER_S) :]
    loud = np.flatnonzero(latest > max(_RANGE * float(levels.max()), _OVER_PAUSE * noise))
    return vad_end - (len(latest) - 1 - int(loud[-1])) * size if len(loud) else vad_end
