"""Triangular mel filters on Slaney's scale, for every log-mel of this project.

In: rate, size of the transform, band limits. Out: a float64 matrix. Pure numpy, any thread.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Slaney's auditory scale: linear to 1 kHz (15 mel), then 27 steps per factor of 6.4 (Auditory Toolbox, 1998).
LINEAR_HZ_PER_MEL = 200.0 / 3.0
LOG_START_HZ = 1000.0
LOG_STEP = np.log(6.4) / 27.0


def slaney_mel_filters(
    sample_rate: int, n_fft: int, n_mels: int, fmin: float, fmax: float
) -> NDArray[np.float64]:
    """Triangular filters of equal area on Slaney's mel scale, [n_mels, n_fft / 2 + 1]."""
    edges = _mel_to_hz(np.linspace(_hz_to_mel(fmin), _hz_to_mel(fmax), n_mels + 2))
    bins = np.linspace(0.0, sample_rate / 2, n_fft // 2 + 1)
    lower, centre, upper = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    triangles = np.minimum((bins - lower) / (centre - lower), (upper - bins) / (upper - centre))
    filters: NDArray[np.float64] = np.maximum(triangles, 0.0) * 2.0 / (upper - lower)
    return filters


def _hz_to_mel(hz: float) -> float:
    if hz < LOG_START_HZ:
        return hz / LINEAR_HZ_PER_MEL
    return float(LOG_START_HZ / LINEAR_HZ_PER_MEL + np.log(hz / LOG_START_HZ) / LOG_STEP)


def _mel_to_hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    log_start_mel = LOG_START_HZ / LINEAR_HZ_PER_MEL
    linear = mel * LINEAR_HZ_PER_MEL
    # clip the exponent to the range in which the result is used
    logarithmic = LOG_START_HZ * np.exp(LOG_STEP * np.maximum(mel - log_start_mel, 0.0))
    return np.where(mel < log_start_mel, linear, logarithmic)
