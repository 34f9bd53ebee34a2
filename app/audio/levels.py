"""Signal levels: RMS amplitude and decibels. Any thread."""

from __future__ import annotations

import numpy as np

from engine_runtime.types import Pcm


def dbfs(level: float) -> float:
    """RMS amplitude as decibels below full scale, -120 for silence."""
    return max(20.0 * float(np.log10(max(level, 1e-6))), -120.0)


def gain_of(volume: float) -> float:
    """Factor for samples of a volume from 0 to 1 as heard: half of it is 18 dB less."""
    return volume**3


def rms(pcm: Pcm) -> float:
    """Root mean square of `pcm` [n], 0 if it is empty."""
    return float(np.sqrt(np.dot(pcm, pcm) / len(pcm))) if len(pcm) else 0.0
