"""Prosody at the end of a turn: how far pitch and loudness have fallen. Pure; the end of turn thread.

In: the audio of a turn at 16 kHz. Out: two measures of its last voiced sound against the turn as a whole. In
many languages a speaker lets both fall at the end of a statement, and keeps them up before a word that is
still to come. A question may end high, so only a fall says something; its absence counts as nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine_runtime.types import Pcm

_RATE = 16_000
_WINDOW, _HOP = 640, 160
"""40 ms, every 10 ms."""
_FFT = 900
"""At least window and longest period; has small prime factors."""
_LOWEST_HZ, _HIGHEST_HZ = 70, 400
_CLARITY = 0.5
"""Autocorrelation at the pitch, of that at lag 0, from which on a frame is voiced."""
_OCTAVE_COST = 0.03
"""Clarity lost per octave of period: a voice repeats itself after two periods as well as after one."""
_AUDIBLE = 0.1
"""Share of the loudest frames' RMS below which a frame is not this speaker's speech."""
_FEWEST = 12
"""Voiced frames without which a turn has no prosody to speak of."""
_PITCH_FRAMES, _LEVEL_FRAMES = 10, 5
"""The last voiced frames that are compared with the turn."""
_LARGEST_FALL_ST, _LARGEST_FALL_DB = 8.0, 25.0


@dataclass(frozen=True, slots=True)
class Prosody:
    """How far the end of a turn lies below the turn: pitch below its median, in semitones, and level below
    that of its loudest tenth, in dB. Neither is negative."""

    pitch_fall_st: float
    level_fall_db: float


def measure(pcm: Pcm) -> Prosody | None:
    """Prosody of the turn `pcm` [n]; None if too little of it is voiced. Takes a few milliseconds."""
    if len(pcm) < _WINDOW:
        return None
    frames = np.lib.stride_tricks.sliding_window_view(pcm.astype(np.float32), _WINDOW)[::_HOP]
    level = np.sqrt((frames**2).mean(axis=1))
    is_audible = level > max(_AUDIBLE * np.percentile(level, 95), 1e-6)
    pitch_hz, clarity = _pitch(frames[is_audible])
    is_voiced = clarity > _CLARITY
    if is_voiced.sum() < _FEWEST:
        return None
    semitones = 12.0 * np.log2(pitch_hz[is_voiced])
    decibels = 20.0 * np.log10(level[is_audible][is_voiced])
    pitch_fall = np.median(semitones) - semitones[-_PITCH_FRAMES:].mean()
    level_fall = np.percentile(decibels, 90) - decibels[-_LEVEL_FRAMES:].mean()
    return Prosody(
        float(np.clip(pitch_fall, 0.0, _LARGEST_FALL_ST)), float(np.clip(level_fall, 0.0, _LARGEST_FALL_DB))
    )


def _pitch(frames: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """[frames, window] -> pitch in Hz and its clarity [frames]: the peak of the autocorrelation, freed of
    that of the window."""
    taper = np.hanning(_WINDOW).astype(np.float32)
    centred = (frames - frames.mean(axis=1, keepdims=True)) * taper
    own = _autocorrelation(taper[None])
    correlation = _autocorrelation(centred)
    correlation /= np.maximum(correlation[:, :1], 1e-12) * (own / own[:, :1])
    lags = np.arange(_RATE // _HIGHEST_HZ, _RATE // _LOWEST_HZ)
    likely = correlation[:, lags]
    best = (likely - _OCTAVE_COST * np.log2(lags / lags[0])).argmax(axis=1)
    clarity = np.take_along_axis(likely, best[:, None], axis=1)[:, 0]
    return (_RATE / lags[best]).astype(np.float32), clarity


def _autocorrelation(frames: NDArray[np.float32]) -> NDArray[np.float32]:
    """[frames, window] -> [frames, lags], up to the longest period."""
    spectrum = np.fft.rfft(frames, _FFT)
    lags = np.fft.irfft(spectrum.real**2 + spectrum.imag**2)[:, : _RATE // _LOWEST_HZ]
    return lags.astype(np.float32)
