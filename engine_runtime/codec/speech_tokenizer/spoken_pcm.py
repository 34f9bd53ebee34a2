"""Checks the samples of speech before they are encoded.

In: PCM of a microphone or a file. Out: the same as contiguous fp32, or an AudioInputError. Any thread.
"""

from __future__ import annotations

import numpy as np

from engine_runtime.errors import AudioInputError
from engine_runtime.types import Pcm

PEAK_LIMIT = 100.0
"""Louder samples (40 dB over full scale) are unscaled integers or invalid."""


def check_pcm(pcm: Pcm) -> Pcm:
    """Samples [n] as fp32; AudioInputError if not mono, not float, not finite or far too loud."""
    if pcm.ndim != 1:
        raise AudioInputError(
            "Speech must be one channel of samples, got an array of shape {shape}.",
            "Pass one channel.",
            shape=pcm.shape,
        )
    if not np.issubdtype(pcm.dtype, np.floating):
        raise AudioInputError(
            "Speech samples must be floating point in [-1, 1], got {dtype}.",
            "Scale integers first.",
            dtype=pcm.dtype,
        )
    peak = float(np.abs(pcm).max(initial=0.0))
    if not np.isfinite(peak):
        raise AudioInputError(
            "Speech samples contain NaN or infinity.",
            "Check the recording or the driver of the input device.",
        )
    if peak > PEAK_LIMIT:
        raise AudioInputError(
            "Speech samples reach {peak:.6g}, but full scale is 1.0.", "Scale integers first.", peak=peak
        )
    return np.ascontiguousarray(pcm, dtype=np.float32)
