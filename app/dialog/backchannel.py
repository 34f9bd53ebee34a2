"""Is speech over a reply a backchannel? Logistic in the encoder's frames.

In: the frames of Smart Turn's encoder, 20 ms each, that belong to the speech so far. Out: the probability
that it claims no turn: a backchannel ("mm-hm", "yeah exactly"), laughter, a cough, a click. The encoder was
Whisper's, so its frames know words: "stop" and "right" are as long and as loud, and far apart here. The
weights were fitted on synthetic voices. The first quarter of a second says something already, the whole word
more. Runs in the end of turn thread.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from app import paths
from app.dialog.end_of_turn import probability_of

FRAME_SIZE = 384
_PARTS = 3
FEATURES = (2 + _PARTS) * FRAME_SIZE
_FRAMES_PER_S = 50
_MARGIN = 2
"""Frames before the speech that count: the VAD finds it a little late."""
_MOST_FRAMES = 76
"""Speech that is longer is judged by its last 1.5 s."""
_LARGEST_SCORE = 20.0
_log = logging.getLogger(__name__)


def features(frames: NDArray[np.float32], speech_s: float) -> NDArray[np.float32]:
    """[n, 384], the last of which ends now, `speech_s` after the start of the speech -> [1920]: mean and
    maximum of its frames, and the means of its three parts, so that order counts."""
    count = min(round(speech_s * _FRAMES_PER_S) + _MARGIN, _MOST_FRAMES, len(frames))
    speech = frames[-max(count, _PARTS) :]
    means = [part.mean(axis=0) for part in np.array_split(speech, _PARTS)]
    return np.concatenate([speech.mean(axis=0), speech.max(axis=0), *means]).astype(np.float32)


class BackchannelHead:
    """The log-odds that speech is a backchannel, linear in its `features`."""

    def __init__(self, weight: NDArray[np.float32], bias: float) -> None:
        self._weight, self._bias = weight, bias

    def probability(self, frames: NDArray[np.float32], speech_s: float) -> float:
        """How likely the speech of the last `speech_s` of `frames` [n, 384] is one; NaN is never returned."""
        score = float(features(frames, speech_s) @ self._weight) + self._bias
        return probability_of(0.0 if math.isnan(score) else min(max(score, -_LARGEST_SCORE), _LARGEST_SCORE))


def backchannel_file() -> Path:
    """File of the weights; tests/tools/fit_backchannel.py writes it."""
    return paths.assets_dir() / "end_of_turn" / "backchannel.safetensors"


def load_backchannel_head(file: Path) -> BackchannelHead | None:
    """The head, None where its file is missing or damaged, which the log says."""
    try:
        tensors = load_file(file)
        weight, bias = tensors["weight"].astype(np.float32), tensors["bias"].item()
        if weight.shape != (FEATURES,) or not np.isfinite([*weight, bias]).all():
            raise ValueError(f"{file} has no {FEATURES} weights")
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        _log.warning("the words over a reply are not judged: %s", error)
        return None
    return BackchannelHead(weight, bias)
