"""Voice activity: the probability that a frame holds speech, from the Silero v6 network on onnxruntime.

In: 16 kHz frames of 512 samples (32 ms). Out: one probability each; about 0.1 ms of one core a frame. The
network comes inside the silero-vad package, and is loaded once for all streams of a process. Decisions
(thresholds, hysteresis) are made in turn_taking. Dialog thread; the state belongs to one audio stream.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from engine_runtime import installation
from engine_runtime.errors import MossVoiceError
from engine_runtime.onnx_runtime import OnnxModelError, create_session, find_model
from engine_runtime.types import Pcm


class Vad(Protocol):
    """Rates frames of speech."""

    sample_rate: int
    frame_samples: int

    def probability(self, frame: Pcm) -> float:
        """How likely `frame` [frame_samples] holds speech, 0 to 1."""

    def reset(self) -> None:
        """Forget the audio stream so far: another one begins."""


class SileroVad:
    """The network with its recurrent state and the 64 samples of context it wants before each frame."""

    sample_rate = 16_000
    frame_samples = 512
    _context_samples = 64

    def __init__(self, model: Path | None = None) -> None:
        """Load the network; MossVoiceError if it, or onnxruntime, is not installed."""
        path = model or find_model("silero_vad", "data/silero_vad.onnx")
        if path is None:
            raise MossVoiceError(
                "Speech cannot be detected: the package silero-vad is missing.",
                "{remedy}",
                remedy=installation.remedy(),
            )
        self._session = _load(path)
        self._rate = np.array(self.sample_rate, dtype=np.int64)
        self._input = np.zeros((1, self._context_samples + self.frame_samples), dtype=np.float32)
        self._state = np.zeros((2, 1, 128), dtype=np.float32)

    def probability(self, frame: Pcm) -> float:
        """How likely `frame` [512] holds speech, given the frames before it."""
        if frame.shape != (self.frame_samples,):
            raise ValueError(f"a frame has {self.frame_samples} samples, got {frame.shape}")
        # NOTE: before the new frame is written: the network expects the last 64 samples in front of each
        # frame. Without them it still answers, and less well.
        self._input[0, : self._context_samples] = self._input[0, -self._context_samples :]
        self._input[0, self._context_samples :] = frame
        output, self._state = self._session.run(
            None, {"input": self._input, "state": self._state, "sr": self._rate}
        )
        return float(output[0, 0])

    def reset(self) -> None:
        """Forget what was heard."""
        self._input[:] = 0.0
        self._state = np.zeros_like(self._state)


@cache
def _load(path: Path) -> Any:
    """The session of a network. It keeps no state, and runs in any thread."""
    try:
        return create_session(path, purpose="detect speech")
    except OnnxModelError as error:
        raise MossVoiceError(
            "Speech cannot be detected: {path} is damaged.",
            "Reinstall the package silero-vad.",
            path=path,
        ) from error
