"""Measures whether the microphone hears the loudspeaker, how loud and how late.

In: captured, played and processed sound at 16 kHz, in step. Out: whether there is an echo, its delay, the
echo return loss (ERL, level played less level captured) and its enhancement (ERLE, level captured less level
processed). The cross-correlation of both signals, whitened (GCC-PHAT), has one sharp peak at the delay of an
echo and none for a user who speaks at the same time. Dialog thread.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from app.audio.levels import dbfs, rms
from app.audio.playback_reference import RATE_HZ
from engine_runtime.types import Pcm

_WINDOW = 4_096
"""Captured samples compared at a time, 256 ms."""
_LONGEST_DELAY = 6_144
"""384 ms: both devices, a wireless loudspeaker, the room."""
_FFT = 10_240
"""Window and longest delay. 2 ** 11 * 5, which takes half the time of 10,500 = 2 ** 2 * 3 * 5 ** 3 * 7."""
_BAND = slice(300 * _FFT // RATE_HZ + 1, 7_000 * _FFT // RATE_HZ)
"""Bins between 300 Hz and 7 kHz."""
_WHITENING_FLOOR = 0.1
"""Share of the mean added to each bin, so that bins without sound weigh less than those with some."""
_PEAK = 12.0
"""Height over the RMS of all delays that counts as a peak; an echo at -30 dB has 22 in the median."""
_PEAK_WIDTH = 16
"""Samples on each side, 1 ms: the room spreads a peak."""
_SECOND_PEAK = 0.55
"""Share of that height which no other peak may exceed. Two voices of the same pitch give several similar
peaks, an echo gives one."""
_SAME_DELAY = 4
"""Samples, 0.25 ms: an echo stays where it is but for drift (2.4 samples at most), a chance peak does not."""
_KNOWN_S = 1.0
"""An echo found within this time is confirmed by a single peak at its delay."""
_PEAKS, _WITHIN_S = 6, 0.5
"""This many peaks at the same delay within this time are an echo. A synthetic voice that says the same words
as the user gives a few, since it repeats itself exactly."""
_RECENT_S = 0.1
"""A peak makes an echo possible for this long."""
_AUDIBLE = 0.001
"""RMS of what is played that could be heard back (-60 dBFS)."""
_CAPTURED = 0.0003
"""RMS of a capture that is worth comparing."""
_LATEST = 1_024
_LATEST_LOSSES = 15


class EchoMonitor:
    """Compares the latest sound when asked."""

    def __init__(self) -> None:
        self._near = np.zeros(_WINDOW, dtype=np.float32)
        self._out = np.zeros(_WINDOW, dtype=np.float32)
        self._far = np.zeros(_WINDOW + _LONGEST_DELAY, dtype=np.float32)
        self._new: list[tuple[Pcm, Pcm, Pcm]] = []
        """Captured, processed and played sound that is not in these windows yet."""
        self._white = np.zeros(_FFT // 2 + 1, dtype=np.complex64)
        self._samples = 0
        self._peaks: deque[tuple[float, int]] = deque(maxlen=16)
        """(when in seconds of captured sound, delay in samples) of the latest peaks."""
        self._losses: deque[tuple[float, float]] = deque(maxlen=_LATEST_LOSSES)
        """(ERL, ERLE) at the latest moments with an echo."""
        self._delay: int | None = None
        """Delay of the latest echo in samples, latency of both devices included."""
        self._found_s = 0.0
        """When that echo was found."""

    @property
    def is_audible(self) -> bool:
        """Whether what was played lately could be heard back."""
        self._fill_windows()
        return rms(self._far) > _AUDIBLE

    @property
    def has_peak(self) -> bool:
        """Whether a late comparison had a peak: perhaps an echo."""
        return bool(self._peaks) and self._samples / RATE_HZ - self._peaks[-1][0] <= _RECENT_S

    @property
    def is_established(self) -> bool:
        """Whether an echo was found many times: a similar voice is taken for one a few times."""
        return len(self._losses) == _LATEST_LOSSES

    @property
    def erl_db(self) -> float | None:
        """Echo return loss: median of the latest moments with an echo, None before the first."""
        return float(np.median([erl for erl, _ in self._losses])) if self._losses else None

    @property
    def erle_db(self) -> float | None:
        """Echo return loss enhancement, likewise."""
        return float(np.median([erle for _, erle in self._losses])) if self._losses else None

    @property
    def delay_ms(self) -> float | None:
        """Delay of the latest echo, None before the first."""
        return None if self._delay is None else self._delay * 1000.0 / RATE_HZ

    def add(self, near: Pcm, far: Pcm, processed: Pcm) -> None:
        """Add the next captured, played and processed samples, equally many."""
        self._samples += len(near)
        self._new.append((near, far, processed))

    def _fill_windows(self) -> None:
        if not self._new:
            return
        added, self._new = zip(*self._new, strict=True), []
        for kept, parts in zip((self._near, self._far, self._out), added, strict=True):
            new = np.concatenate(parts)
            count = min(len(new), len(kept))
            kept[: len(kept) - count] = kept[count:]
            kept[len(kept) - count :] = new[len(new) - count :]

    def find_echo(self) -> bool:
        """Compare the latest sound; whether it has an echo for certain."""
        if not self.is_audible or rms(self._near[-_LATEST:]) < _CAPTURED:
            return False
        product = np.fft.rfft(self._near, _FFT) * np.conj(np.fft.rfft(self._far, _FFT))
        size = np.abs(product)
        floor = _WHITENING_FLOOR * size.mean() + 1e-20
        np.divide(product[_BAND], size[_BAND] + floor, out=self._white[_BAND])
        # The played samples begin earlier by the longest delay: delay d is at lag d - _LONGEST_DELAY.
        correlation = np.abs(np.fft.irfft(self._white, _FFT)[-_LONGEST_DELAY:])
        peak = int(correlation.argmax())
        height = correlation[peak]
        if height <= max(_PEAK * rms(correlation), 0.0):
            return False
        correlation[max(peak - _PEAK_WIDTH, 0) : peak + _PEAK_WIDTH + 1] = 0.0
        return bool(correlation.max() < _SECOND_PEAK * height) and self._confirm(peak)

    def _confirm(self, delay: int) -> bool:
        """Whether enough of the latest peaks have this delay, or one does of a known echo; if so, measure the
        losses."""
        now_s = self._samples / RATE_HZ
        self._peaks.append((now_s, delay))
        same = [
            then_s
            for then_s, earlier in self._peaks
            if now_s - then_s <= _WITHIN_S and abs(delay - earlier) <= _SAME_DELAY
        ]
        is_known = self._delay is not None and now_s - self._found_s <= _KNOWN_S
        is_same = is_known and abs(delay - (self._delay or 0)) <= _SAME_DELAY
        is_echo = is_same or len(same) >= _PEAKS
        if is_echo:
            self._delay, self._found_s = delay, now_s
            played = self._far[len(self._far) - delay - _WINDOW : len(self._far) - delay]
            captured = dbfs(rms(self._near))
            self._losses.append((dbfs(rms(played)) - captured, captured - dbfs(rms(self._out))))
        return is_echo
