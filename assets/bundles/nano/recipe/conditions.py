"""Conditions in which held-out questions are asked: room, noise, telephone, echo of the assistant.

In and out: a whole recording, mono float32 at 16 kHz, pauses included. Unlike the training's disturbances
(augmentation.py) each has a fixed strength, so that shares of two models can be compared.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import voices
from numpy.typing import NDArray
from scipy.signal import butter, fftconvolve, sosfilt

Samples = NDArray[np.float32]

REVERBERATION_S = 0.4
DIRECT_DB = 3.0  # direct sound over reverberation
NOISE_DB = 10.0  # speech over noise
ECHO_DB = 25.0  # speech over what an echo canceller leaves of the assistant
TELEPHONE_RATE, TELEPHONE_HZ = 8_000, (300, 3_400)
SPEECH_FLOOR = 1e-3  # samples above it count as speech


def _speech_rms(wave: Samples) -> float:
    speech = wave[np.abs(wave) > SPEECH_FLOOR]
    return float(np.sqrt(np.mean(speech**2))) if len(speech) else 0.0


def _below(wave: Samples, disturbance: Samples, decibels: float) -> Samples:
    """`wave` and the disturbance, so many decibels below its speech."""
    rms = float(np.sqrt(np.mean(disturbance**2)))
    return wave + disturbance * np.float32(_speech_rms(wave) / rms * 10 ** (-decibels / 20))


def _pink(count: int, rng: np.random.Generator) -> Samples:
    spectrum = np.fft.rfft(rng.standard_normal(count))
    spectrum /= np.sqrt(np.maximum(np.arange(len(spectrum)), 1))
    return np.fft.irfft(spectrum, count).astype(np.float32)


def _room(wave: Samples, rng: np.random.Generator) -> Samples:
    """Exponentially decaying noise (60 dB in `REVERBERATION_S`) behind the direct sound."""
    time = np.arange(int(REVERBERATION_S * voices.RATE)) / voices.RATE
    tail = rng.standard_normal(len(time)) * 10 ** (-3 * time / REVERBERATION_S)
    tail *= 10 ** (-DIRECT_DB / 20) / np.linalg.norm(tail)
    tail[0] += 1.0
    return fftconvolve(wave, tail)[: len(wave)].astype(np.float32)


def _telephone(wave: Samples, _rng: np.random.Generator) -> Samples:
    """300 to 3,400 Hz at 8 kHz, 8-bit mu-law (G.711)."""
    band = butter(4, TELEPHONE_HZ, "bandpass", fs=TELEPHONE_RATE, output="sos")
    narrow = sosfilt(band, voices.resample(wave, voices.RATE, TELEPHONE_RATE))
    companded = np.sign(narrow) * np.log1p(255 * np.minimum(np.abs(narrow), 1)) / np.log(256)
    stepped = np.round(companded * 127) / 127
    linear = np.sign(stepped) * np.expm1(np.abs(stepped) * np.log(256)) / 255
    return voices.resample(linear.astype(np.float32), TELEPHONE_RATE, voices.RATE)[: len(wave)]


def _echo(wave: Samples, rng: np.random.Generator) -> Samples:
    """The assistant's voice, from a random place on, as long as the user speaks: then the reply pauses."""
    said = voices.render_many([("the capital of france is paris and grass is green", voices.ASSISTANT)])[0]
    user = np.flatnonzero(np.abs(wave) > SPEECH_FLOOR)
    spoken = np.zeros_like(wave)
    during = slice(user[0], user[-1] + 1)
    spoken[during] = np.resize(np.roll(said, int(rng.integers(len(said)))), user[-1] + 1 - user[0])
    return _below(wave, spoken, ECHO_DB)


CONDITIONS: dict[str, Callable[[Samples, np.random.Generator], Samples]] = {
    "room": _room,
    "noise 10 dB": lambda wave, rng: _below(wave, _pink(len(wave), rng), NOISE_DB),
    "telephone": _telephone,
    "echo residue": _echo,
}
CLEAN = "clean"


def disturbed(wave: Samples, condition: str, seed: int) -> Samples:
    """A recording as it sounds under a condition; `CLEAN` leaves it as it is. Equal seeds, equal sound."""
    if condition == CLEAN:
        return wave
    return np.clip(CONDITIONS[condition](wave, np.random.default_rng(seed)), -1, 1)
