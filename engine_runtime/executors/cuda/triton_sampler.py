"""Sampling on the device with Triton kernels: two launches per channel instead of about forty, and no copy of
the result.

In and out: as in executors/cuda/sampler.py, whose DeviceSampler is the reference implementation. Imported
only if Triton is available. Engine thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from engine_runtime.cuda.kernels.sampling import MAX_CANDIDATES, best_of_tile, sample_one
from engine_runtime.executors.cuda.inputs import StepInputs
from engine_runtime.executors.cuda.sampler import (
    AUDIO,
    AUDIO_MAGNITUDE,
    SUBTITLE,
    TEXT,
    TEXT_MAGNITUDE,
    DeviceSampler,
)
from engine_runtime.executors.cuda.sampling_fields import SAMPLE_ARGUMENTS, SCORE_ARGUMENTS, arguments
from engine_runtime.lm.step import MAX_TOP_K

VOCAB_TILE = 2048
"""Ids per vocabulary tile, one program each."""


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Intermediate buffers between the two launches of one channel."""

    best: Tensor
    best_ids: Tensor
    tops: Tensor
    top_ids: Tensor
    sums: Tensor

    @classmethod
    def of(cls, vocab: int, device: torch.device) -> _Buffers:
        """Buffers for every tile of a vocabulary."""
        count = triton.cdiv(vocab, VOCAB_TILE)
        return cls(
            torch.full((count, MAX_TOP_K), -torch.inf, device=device),
            torch.zeros(count, MAX_TOP_K, dtype=torch.int32, device=device),
            torch.zeros(count, device=device),
            torch.zeros(count, dtype=torch.int32, device=device),
            torch.zeros(count, device=device),
        )


class TritonSampler(DeviceSampler):
    def __init__(self, text_vocab: int, audio_vocab: int, inputs: StepInputs, device: torch.device) -> None:
        super().__init__(text_vocab, audio_vocab, inputs, device)
        assert MAX_CANDIDATES.value == MAX_TOP_K
        self.result = self._read  # the kernels write to pinned host memory directly
        self._text_buffers = _Buffers.of(text_vocab, device)
        self._audio_buffers = _Buffers.of(audio_vocab, device)
        self._last = torch.zeros(MAX_TOP_K, device=device)
        self._last_ids = torch.zeros(MAX_TOP_K, dtype=torch.int32, device=device)

    def run(self, text: Tensor | None, audio: Tensor | None, *, do_sample: bool, subtitle: bool) -> None:
        inputs = self._inputs
        if text is None:
            self._seen_text.index_fill_(0, inputs["seen_text"], True)
        else:
            top = SUBTITLE if subtitle else -1
            self._channel(text, self._text_buffers, TEXT, top, TEXT_MAGNITUDE, do_sample)
        if audio is None:
            self._seen_audio.index_fill_(0, inputs["seen_audio"], True)
        else:
            self._channel(audio, self._audio_buffers, AUDIO, -1, AUDIO_MAGNITUDE, do_sample)

    def _channel(
        self,
        logits: Tensor,
        buffers: _Buffers,
        place: int,
        top: int,
        magnitude: int,
        do_sample: bool,
    ) -> None:
        inputs, is_audio = self._inputs, place == AUDIO
        count = buffers.tops.numel()
        between = (buffers.best, buffers.best_ids, buffers.tops, buffers.top_ids, buffers.sums)
        best_of_tile[(count,)](
            logits,
            (self._seen_audio if is_audio else self._seen_text).view(torch.uint8),
            *arguments(SCORE_ARGUMENTS, inputs, is_audio=is_audio),
            *between,
            VOCAB=logits.numel(),
            VOCAB_TILE=VOCAB_TILE,
            IS_AUDIO=is_audio,
            DO_SAMPLE=do_sample,
            num_warps=8,
        )
        sample_one[(1,)](
            *between,
            self._last,
            self._last_ids,
            *arguments(SAMPLE_ARGUMENTS, inputs, is_audio=is_audio),
            self.result,
            ID=place,
            TOP=top,
            MAGNITUDE=magnitude,
            NUM_TILES=count,
            TILES_BLOCK=max(2, triton.next_power_of_2(count)),
            DO_SAMPLE=do_sample,
            num_warps=8,
        )
