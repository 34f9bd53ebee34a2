"""Sample-rate conversion of a complete recording, for voices and for the recognizer.

In: mono PCM and two rates. Out: PCM at the other rate, in phase. A polyphase filter with a Kaiser window, the
design of scipy.signal.resample_poly, without the 140 MB that SciPy adds to an installation. For streams of
sound devices see `app/audio/resample.py`. Any thread.
"""

from __future__ import annotations

from math import gcd

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from engine_runtime.types import Pcm

_ZERO_CROSSINGS = 10
_KAISER_BETA = 5.0
_BLOCK = 1 << 15
"""Output samples per batch: each needs a window of the input and as many taps."""


def resample(pcm: Pcm, rate: int, to: int) -> Pcm:
    """Samples [n] at another rate, [ceil(n * to / rate)]; the signal is zero beyond its ends."""
    if rate == to:
        return pcm
    up, down = to // gcd(rate, to), rate // gcd(rate, to)
    taps, reach = _phases(up, down), _ZERO_CROSSINGS * max(up, down)
    width = taps.shape[1]
    windows = sliding_window_view(np.pad(pcm.astype(np.float32), width), width)
    result = np.empty(-(-pcm.size * up // down), dtype=np.float32)
    for start in range(0, result.size, _BLOCK):
        block = result[start : start + _BLOCK]
        # Output m is at input position m * down / up; its window ends with the last input within the filter.
        last, phase = np.divmod(np.arange(start, start + block.size, dtype=np.int64) * down + reach, up)
        np.einsum("mk,mk->m", windows[last + 1], taps[phase], out=block)
    return result


def _phases(up: int, down: int) -> NDArray[np.float32]:
    """Taps [up, width] of each phase of the low-pass, in the order of the input."""
    reach = _ZERO_CROSSINGS * max(up, down)
    offsets = np.arange(-reach, reach + 1)
    low_pass = np.sinc(offsets / max(up, down)) * np.kaiser(offsets.size, _KAISER_BETA)
    low_pass *= up / low_pass.sum()
    width = 2 * reach // up + 1
    phases = np.pad(low_pass, (0, width * up - low_pass.size)).reshape(width, up).T
    return phases[:, ::-1].astype(np.float32)
