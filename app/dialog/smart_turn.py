"""End-of-turn detection: the Smart Turn v3.2 network.

In: the audio of the present turn at 16 kHz, of which the last 8 s count. Out: its probability that the user
has finished, and its encoder's summary of the turn, which turn_end judges again. The network listens to
prosody, not to words, and was trained on many languages. It comes inside the pipecat-ai package and runs on
onnxruntime with one thread. A call takes tens of milliseconds, so it has a thread of its own
(app.session.end_of_turn_worker); what follows from the probability is decided in end_of_turn and turn_taking.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine_runtime import installation
from engine_runtime.codec.speech_tokenizer.mel_filters import slaney_mel_filters
from engine_runtime.errors import MossVoiceError
from engine_runtime.onnx_runtime import OnnxModelError, create_session, find_model, with_output
from engine_runtime.types import Pcm

WINDOW_S = 8.0
"""Length of the network's window; a shorter turn is padded at the front."""
_RATE = 16_000
_WINDOW_SAMPLES = round(WINDOW_S * _RATE)
_PACKAGE = "pipecat"
_FILE = "audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx"
_SHA256 = "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f"
"""Hash of the file that has the tensors below. The weights over those tensors were fitted on this version."""
_SUMMARY, _FRAMES = "sum_1", "layer_norm_8"
"""Inner tensors: Whisper's encoding of the window, pooled by attention, and before that."""
_N_FFT, _HOP, _N_MELS = 400, 160, 80
_BLOCK_FRAMES = 16
_POWER_FLOOR = 1e-10
_DYNAMIC_RANGE = 8.0
"""Decades of power below the loudest moment at which the spectrum is floored."""
_VARIANCE_FLOOR = 1e-7


class EndOfTurnDetector(Protocol):
    """Estimates whether a turn is finished."""

    def probability(self, pcm: Pcm) -> float:
        """How likely the turn `pcm` [n] at 16 kHz, with the pause at its end, is finished, 0 to 1."""

    def backchannel(self, pcm: Pcm, speech_s: float) -> float | None:
        """How likely the speech over a reply that began `speech_s` before the end of `pcm` [n] is a
        backchannel, so far, or no speech at all; None if the detector cannot tell."""


@dataclass(frozen=True, slots=True)
class Impression:
    """The network's judgement of a turn: its own probability that it is finished, and the summary [384] of
    what it heard, None where the installed network is of another version."""

    probability: float
    summary: NDArray[np.float32] | None
    frames: NDArray[np.float32] | None = None
    """Whisper's encoding of the window [400, 384], one for 20 ms; None likewise."""


def installed_model() -> Path | None:
    """The file of the network, None if its package is not installed."""
    return find_model(_PACKAGE, _FILE)


def _damaged(path: Path) -> MossVoiceError:
    return MossVoiceError(
        "Silence alone ends a turn, because {path} is damaged.",
        "Reinstall the package pipecat-ai.",
        path=path,
    )


class SmartTurn:
    """The network; it has no state."""

    def __init__(self, model: Path | None = None) -> None:
        """Load the network and try it; MossVoiceError if it, or onnxruntime, is not installed or does not
        work."""
        path = model or installed_model()
        if path is None:
            raise MossVoiceError(
                "Silence alone ends a turn, because Smart Turn is not installed.",
                "{remedy}",
                remedy=installation.remedy(),
            )
        self._features = LogMel()
        try:
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() == _SHA256:
                content = with_output(with_output(content, _SUMMARY), _FRAMES)
            self._session = create_session(content, purpose="detect the end of a turn")
        except (OSError, OnnxModelError) as error:
            raise _damaged(path) from error
        if [(put.name, put.shape[1:]) for put in self._session.get_inputs()] != [
            ("input_features", [_N_MELS, _WINDOW_SAMPLES // _HOP])
        ] or not 0.0 <= self.probability(np.zeros(0, np.float32)) <= 1.0:
            raise _damaged(path)

    def probability(self, pcm: Pcm) -> float:
        """How likely the turn `pcm` [n] is finished, by the network alone; NaN is never returned."""
        return self.hear(pcm).probability

    def hear(self, pcm: Pcm) -> Impression:
        """What the network makes of the turn `pcm` [n]; the probability is never NaN."""
        output, *inner = self._session.run(None, {"input_features": self._features(pcm)[None]})
        probability = float(output.reshape(-1)[0])
        summary, frames = (inner[0].reshape(-1), inner[1][0]) if inner else (None, None)
        return Impression(probability if math.isfinite(probability) else 0.0, summary, frames)


class LogMel:
    """Whisper's log-mel of the last 8 s, normalized to zero mean and unit variance first."""

    def __init__(self) -> None:
        self._window = np.hanning(_N_FFT + 1)[:-1].astype(np.float32)
        self._filters = slaney_mel_filters(_RATE, _N_FFT, _N_MELS, 0.0, _RATE / 2).astype(np.float32)

    def __call__(self, pcm: Pcm) -> NDArray[np.float32]:
        """[n] -> [80, 800], of which the last frame belongs to the last sample."""
        recent = pcm[-_WINDOW_SAMPLES:]
        wave = np.pad(recent.astype(np.float32), (_WINDOW_SAMPLES - len(recent), 0))
        wave = (wave - wave.mean()) / np.sqrt(wave.var() + _VARIANCE_FLOOR)
        mirrored = np.pad(wave, _N_FFT // 2, mode="reflect")
        # The frame that is centred on the end is left out, as in Whisper.
        windows = np.lib.stride_tricks.sliding_window_view(mirrored, _N_FFT)[:-_HOP:_HOP]
        spectrum = np.fft.rfft(windows * self._window)
        power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)  # [800, 201]
        # In blocks too small for a second thread of BLAS, which would spin all through the network's call.
        blocks = power.reshape(-1, _BLOCK_FRAMES, power.shape[-1]) @ self._filters.T
        log_power = np.log10(np.maximum(blocks.reshape(-1, _N_MELS), _POWER_FLOOR)).T
        floored = np.maximum(log_power, log_power.max() - _DYNAMIC_RANGE)
        features: NDArray[np.float32] = ((floored + 4.0) / 4.0).astype(np.float32)
        return features
