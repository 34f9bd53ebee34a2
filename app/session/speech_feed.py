"""Streams the speech of the user to the engine while it is spoken: pre-roll, blocks, tail, resampling.

In: the utterance buffer of the capture, and the end of the speech so far. Out: `Hear` jobs. Dialog thread.
"""

from __future__ import annotations

import numpy as np

from app.audio.resample import Resampler
from app.session.capture import Capture
from app.session.engine_jobs import Hear, JobQueue
from engine_runtime.types import Pcm

_BLOCK_MS = 80
"""Speech is handed over in blocks of at least this much."""


class SpeechFeed:
    """One turn at a time."""

    def __init__(self, capture: Capture, worker: JobQueue) -> None:
        self._capture = capture
        self._worker = worker
        self._resampler = Resampler(capture.sample_rate, capture.sample_rate)

    def set_rate(self, sample_rate: int) -> None:
        """The rate that the engine wants."""
        self._resampler = Resampler(self._capture.sample_rate, sample_rate)

    def open(self, start_ms: float) -> float:
        """A turn begins; its audio starts at `start_ms`, or as far back as is kept. Returns where."""
        start = self._capture.utterance.open(self._capture.samples_of(max(start_ms, 0.0)))
        self._resampler.reset()
        return self._capture.ms_of(start)

    def give(self, turn_id: int, up_to_ms: float) -> None:
        """Send the samples before `up_to_ms`, if they fill a block."""
        self._give(turn_id, up_to_ms, self._capture.samples_of(_BLOCK_MS))

    def finish(self, turn_id: int, up_to_ms: float) -> None:
        """Send the rest before `up_to_ms`, with silence for samples not captured yet; later
        speech may still continue the turn."""
        self._give(turn_id, up_to_ms, 1)
        missing = max(self._capture.samples_of(up_to_ms) - self._capture.utterance.end, 0)
        silence: Pcm = np.zeros(missing, dtype=np.float32)
        rest = np.concatenate([self._resampler.push(silence), self._resampler.finish()])
        if len(rest):
            self._worker.submit(Hear(turn_id, rest))

    def close(self) -> None:
        """The turn can no longer be continued: discard the held-back samples."""
        self._capture.utterance.close()

    def _give(self, turn_id: int, up_to_ms: float, at_least: int) -> None:
        up_to = self._capture.samples_of(up_to_ms)
        if self._capture.utterance.ready(up_to) < at_least:
            return
        pcm = self._resampler.push(self._capture.utterance.take(up_to))
        if len(pcm):
            self._worker.submit(Hear(turn_id, pcm))
