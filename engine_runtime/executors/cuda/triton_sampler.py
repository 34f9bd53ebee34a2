"""Sampling on the device with Triton kernels: two launches per channel instead of about forty, and no copy of
the result.

In and out: as in executors/cuda/sampler.py, whose DeviceSampler is the reference implementation. Imported
only if Triton is available. Engine thread.
"""

from __future__ import annotations

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
from engine_runtime.executors.cuda.sampling_fields import (
    SAMPLE_ARGUMENTS,
    SCORE_ARGUMENTS,
    NamedInputs,
    arguments,
)
from engine_runtime.lm.step import MAX_TOP_K

VOCAB_TILE = 2048
"""Ids per vocabulary tile, one program each."""


class SamplingChannel:
    """One channel of up to `capacity` sequences: the seen ids of replies, and the buffers between the two
    launches.

    `seen` [sets, vocab] uint8; the input `seen_set` says which one a sequence has.
    """

    def __init__(self, seen: Tensor, capacity: int, *, is_audio: bool) -> None:
        assert MAX_CANDIDATES.value == MAX_TOP_K
        device, self._is_audio, self.seen = seen.device, is_audio, seen
        self._num_tiles = count = triton.cdiv(seen.shape[1], VOCAB_TILE)
        best = torch.full((capacity, count, MAX_TOP_K), -torch.inf, device=device)
        best_ids = torch.zeros(capacity, count, MAX_TOP_K, dtype=torch.int32, device=device)
        tops, sums = torch.zeros(2, capacity, count, device=device)
        top_ids = torch.zeros(capacity, count, dtype=torch.int32, device=device)
        self._between = best, best_ids, tops, top_ids, sums
        self._last = torch.zeros(capacity, MAX_TOP_K, device=device)
        self._last_ids = torch.zeros(capacity, MAX_TOP_K, dtype=torch.int32, device=device)
        self._one = torch.ones((), dtype=torch.uint8, device=device)

    def run(
        self,
        rows: int,
        logits: Tensor | None,
        inputs: NamedInputs,
        result: Tensor,
        *,
        do_sample: bool,
        finds_top: bool,
    ) -> None:
        """Sample for the first rows of logits [.., vocab] into `result`, or only note their seen ids if the
        tail did not run. `finds_top`: also the id of the highest logit."""
        is_audio = self._is_audio
        if logits is None:
            seen_ids = inputs["seen_audio" if is_audio else "seen_text"]
            self.seen.index_put_((inputs["seen_set"][:rows], seen_ids[:rows]), self._one)
            return
        best_of_tile[(self._num_tiles, rows)](
            logits,
            self.seen,
            *arguments(SCORE_ARGUMENTS, inputs, is_audio=is_audio),
            *self._between,
            VOCAB=logits.shape[1],
            VOCAB_TILE=VOCAB_TILE,
            IS_AUDIO=is_audio,
            DO_SAMPLE=do_sample,
            num_warps=8,
        )
        sample_one[(rows,)](
            *self._between,
            self._last,
            self._last_ids,
            *arguments(SAMPLE_ARGUMENTS, inputs, is_audio=is_audio),
            result,
            ID=AUDIO if is_audio else TEXT,
            TOP=SUBTITLE if finds_top else -1,
            MAGNITUDE=AUDIO_MAGNITUDE if is_audio else TEXT_MAGNITUDE,
            NUM_TILES=self._num_tiles,
            TILES_BLOCK=max(2, triton.next_power_of_2(self._num_tiles)),
            DO_SAMPLE=do_sample,
            num_warps=8,
        )


class TritonSampler(DeviceSampler):
    def __init__(self, text_vocab: int, audio_vocab: int, inputs: StepInputs, device: torch.device) -> None:
        super().__init__(text_vocab, audio_vocab, inputs, device)
        self.result = self._read  # the kernels write to pinned host memory directly
        self._text, self._audio = (
            SamplingChannel(seen.view(1, -1).view(torch.uint8), 1, is_audio=is_audio)
            for seen, is_audio in ((self._seen_text, False), (self._seen_audio, True))
        )

    def run(self, text: Tensor | None, audio: Tensor | None, *, do_sample: bool, subtitle: bool) -> None:
        inputs, result = self._inputs, self.result
        self._text.run(1, text, inputs, result, do_sample=do_sample, finds_top=subtitle)
        self._audio.run(1, audio, inputs, result, do_sample=do_sample, finds_top=False)
