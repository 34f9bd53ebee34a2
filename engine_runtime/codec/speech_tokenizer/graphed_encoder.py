"""Steps of the speech encoder as CUDA graphs, one code at a time.

In and out: as `WhisperVQ.step_hidden`, which it replaces in a `SpeechTokenizer`. A step of one code is about
three hundred launches, which take longer to issue than to run; while a person speaks, and at the end, there
is one code to encode. The encoder has no look-ahead, so a few codes are encoded as single steps; many codes
at once run eagerly. A capture belongs to the buffers of one stream, and to a maximum number of positions.
Runs in the thread of its caller.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.models.whisper_vq import CONV2_STRIDE, EncoderState, WhisperVQ

MOST_CODES = 4
"""Maximum number of codes of a call that are encoded one by one."""
SHORT = 512
"""Positions of the shorter capture (10 s); the other one covers a full segment."""


class GraphedEncoder:
    def __init__(self, model: WhisperVQ, calls: GraphedCalls) -> None:
        self._model, self._calls = model, calls

    def __call__(self, mel: Tensor, state: EncoderState) -> tuple[Tensor, EncoderState]:
        """Hidden states of the next frames of a segment [1, n_mels, T], and its new caches."""
        frames = self._model.config.frames_per_code
        if mel.shape[2] % frames or mel.shape[2] > MOST_CODES * frames:
            return self._model.step_hidden(mel, state)
        hidden = []
        for chunk in mel.split(frames, dim=2):
            one, state = self._step(chunk, state)
            hidden.append(one)
        return torch.cat(hidden, dim=1), state

    def _step(self, mel: Tensor, state: EncoderState) -> tuple[Tensor, EncoderState]:
        longest = self._model.config.max_positions
        end = state.length + mel.shape[2] // CONV2_STRIDE
        if end > longest:
            return self._model.step_hidden(mel, state)  # which raises the error
        seen = min(SHORT, longest) if end <= SHORT else longest
        step = partial(self._model.step_at, keys=state.keys, values=state.values, seen=seen)
        positions = torch.arange(state.length, end)
        hidden, conv1, conv2 = self._calls.run_copied(
            ("step", state.keys.data_ptr(), seen), step, mel, state.conv1, state.conv2, positions
        )
        return hidden, replace(state, conv1=conv1, conv2=conv2, length=end)
