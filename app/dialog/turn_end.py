"""End-of-turn detection: the mean of two logistic models of a pause.

In: the audio of the present turn at 16 kHz, 160 ms of pause at its end. Out: the probability that the user
has finished. The first model weighs Smart Turn's own judgement and prosody: Smart Turn alone takes many words
in mid-sentence for the last one, and a fall of pitch and loudness distinguishes most of these. In many
languages a speaker lets both fall at the end of a statement, and keeps them up before a word that is still to
come; a question may end high, so only a fall says something. That judgement was learned from people and says
little about synthetic voices, although the encoder hears their ends; the second model, the head, weighs the
384 numbers of the encoder and was fitted on both. Without the head the first decides alone. Later in the
pause both are less certain, not more: Smart Turn's probability rises with any silence. Runs in the end of
turn thread.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from app import paths
from app.dialog.backchannel import BackchannelHead
from app.dialog.end_of_turn import log_odds, probability_of
from app.dialog.smart_turn import Impression
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
"""Least number of voiced frames for which prosody is measured."""
_PITCH_FRAMES, _LEVEL_FRAMES = 10, 5
"""The last voiced frames that are compared with the turn."""
_LARGEST_FALL_ST, _LARGEST_FALL_DB = 8.0, 25.0


@dataclass(frozen=True, slots=True)
class Prosody:
    """How far the end of a turn lies below the turn: pitch below its median, in semitones, and level below
    that of its loudest tenth, in dB. Neither is negative."""

    pitch_fall_st: float
    level_fall_db: float


def measure_prosody(pcm: Pcm) -> Prosody | None:
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


_log = logging.getLogger(__name__)

_BIAS, _NETWORK, _PITCH_FALL, _LEVEL_FALL = -5.103, 0.423, 0.193, 0.347
"""Fitted by tests/tools/fit_turn_end.py on four people and four synthetic voices."""
_BIAS_ALONE, _NETWORK_ALONE = -1.853, 0.656
"""Likewise, for turns without prosody."""
SUMMARY_SIZE = 384
_LARGEST_SCORE = 20.0
"""Log-odds are limited to this."""


class TurnEncoder(Protocol):
    """A network that listens to a turn."""

    def hear(self, pcm: Pcm) -> Impression:
        """Judges the turn `pcm` [n] at 16 kHz, with the pause at its end."""


class Head:
    """The log-odds that a turn is finished, linear in the encoder's summary."""

    def __init__(self, weight: NDArray[np.float32], bias: float) -> None:
        self._weight, self._bias = weight, bias

    def score(self, summary: NDArray[np.float32]) -> float:
        """Log-odds of the turn with this `summary` [384], within +-20; NaN is never returned."""
        score = float(summary @ self._weight) + self._bias
        return 0.0 if math.isnan(score) else min(max(score, -_LARGEST_SCORE), _LARGEST_SCORE)


def head_file() -> Path:
    """File of the head's weights; tests/tools/fit_turn_end.py writes it."""
    return paths.assets_dir() / "end_of_turn" / "head.safetensors"


def load_head(file: Path) -> Head | None:
    """The head, None where its file is missing or damaged, which the log says."""
    try:
        tensors = load_file(file)
        weight, bias = tensors["weight"], tensors["bias"].item()
        if weight.shape != (SUMMARY_SIZE,) or not np.isfinite([*weight, bias]).all():
            raise ValueError(f"{file} has no {SUMMARY_SIZE} weights")
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        _log.warning("the end of a turn is judged without the encoder's head: %s", error)
        return None
    return Head(weight, bias)


def prosody_score(probability: float, prosody: Prosody | None) -> float:
    """Log-odds by the model of the network's own `probability` and prosody, None for too little voice."""
    certainty = log_odds(probability)
    if prosody is None:
        return _BIAS_ALONE + _NETWORK_ALONE * certainty
    falls = _PITCH_FALL * prosody.pitch_fall_st + _LEVEL_FALL * prosody.level_fall_db
    return _BIAS + _NETWORK * certainty + falls


class TurnEndDetector:
    """A network, and the models on top of it; it has no state."""

    def __init__(
        self, network: TurnEncoder, head: Head | None, overlap_head: BackchannelHead | None = None
    ) -> None:
        self._network = network
        self._head = head
        self._overlap_head = overlap_head

    def probability(self, pcm: Pcm) -> float:
        """How likely the turn `pcm` [n] is finished."""
        impression = self._network.hear(pcm)
        score = prosody_score(impression.probability, measure_prosody(pcm))
        if self._head is not None and impression.summary is not None:
            score = (score + self._head.score(impression.summary)) / 2.0
        return probability_of(score)

    def backchannel(self, pcm: Pcm, speech_s: float) -> float | None:
        """How likely the speech of the last `speech_s` of `pcm` [n] is a backchannel, or no speech; None
        without the head, or with another version of the network."""
        if self._overlap_head is None:
            return None
        frames = self._network.hear(pcm).frames
        return None if frames is None else self._overlap_head.probability(frames, speech_s)
