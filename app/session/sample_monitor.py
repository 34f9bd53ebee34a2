"""Plays a sample question to the user while it replaces the microphone.

In: the sample's sound as it is captured. Out: the playback ring, between replies. Dialog thread.
"""

from __future__ import annotations

import numpy as np

from app.audio.resample import Resampler
from app.audio.streams import AudioOutput
from engine_runtime.types import Pcm

_LEAD_S = 0.06
"""The sound comes at the pace at which it is played: so much is held back, or every late round would be
heard."""


class SampleMonitor:
    """Writes into the ring of the loudspeaker while no reply does."""

    def __init__(self, audio_out: AudioOutput) -> None:
        self._out = audio_out
        self._resampler: Resampler | None = None

    def hear(self, pcm: Pcm, sample_rate: int) -> None:
        """The next block of the sample."""
        if not self._out.name:
            return
        rates = sample_rate, self._out.sample_rate
        if self._resampler is None or (self._resampler.in_rate, self._resampler.out_rate) != rates:
            self._resampler = Resampler(*rates)
            self._out.ring.write(np.zeros(round(_LEAD_S * self._out.sample_rate), dtype=np.float32))
        self._out.ring.write(self._resampler.push(pcm))

    def pause(self) -> None:
        """The sample is paused or has ended; reset."""
        self._resampler = None
