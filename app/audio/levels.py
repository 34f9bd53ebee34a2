"""Signal levels: RMS amplitude and decibels. Any thread."""

from __future__ import annotations

import numpy as np

from engine_runtime.types import Pcm

_SILENT_PEAK = 1.5 / 32_768
"""The last bit of 16: dither, or a muted input. The noise of a quiet microphone is louder."""


def is_silent(pcm: Pcm) -> bool:
    """Whether `pcm` [n] has no sound at all: nothing but zeros or the last bit of 16."""
    return not len(pcm) or float(np.abs(pcm).max()) <= _SILENT_PEAK


def dbfs(level: float) -> float:
    """RMS amplitude as decibels below full scale, -120 for silence."""
    return max(20.0 * float(np.log10(max(level, 1e-6))), -120.0)


def gain_of(volume: float) -> float:
    """Factor for samples of a volume from 0 to 1 as heard: half of it is 18 dB less."""
    return volume**3


def rms(pcm: Pcm) -> float:
    """Root mean square of `pcm` [n], 0 if it is empty."""
    return float(np.sqrt(np.dot(pcm, pcm) / len(pcm))) if len(pcm) else 0.0
