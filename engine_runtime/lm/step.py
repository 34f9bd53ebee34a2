"""Fills the named tensors of a forward step, with the values that a TensorRT-LLM 1.x engine expects.

In: a sequence whose blocks are reserved, and the ids to run. Out: the dict of tensors for `Executor.forward`.
What never changes is made once; the block offsets only when the block table does. Engine thread.

    tensor                          prefill (context)         decode (generation)
    input_ids, position_ids         n ids, p..p+n-1           1 id, p
    last_token_ids                  n (1-based)               1
    sequence_length                 p + n                     p + 1
    (host_)context_lengths          n                         rows at the end of the last prefill
    host_past_key_value_lengths     p + n                     p
    host_request_types              0                         1
    host_tail_start                 first row each tail has to run; the new length = leave it out
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine_runtime.lm.executor import CONTEXT, GENERATION, Executor
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.pick import PickRequest
from engine_runtime.lm.sequence import Sequence

_MULTI_BLOCK_MODE, _FMHA_FP32_ACCUMULATION = 0, 1


@dataclass(frozen=True, slots=True)
class Tails:
    """Which tails a step runs. A tail that is left out is filled from kept trunk outputs when it is needed.

    `pick` asks a PickingExecutor for the next ids in place of the logits.
    """

    text: bool = True
    audio: bool = True
    pick: PickRequest | None = None


BOTH_TAILS = Tails()


class StepFiller:
    """Makes the tensors of one step after the other for one executor and one KV pool."""

    def __init__(self, executor: Executor, cache: KVCache) -> None:
        limits = executor.limits
        self._executor, self._cache = executor, cache
        self._table: list[int] = []
        host_offsets = cache.offsets([], limits.max_blocks)
        self._tensors: dict[str, Tensor] = {
            "kv_cache_block_offsets": host_offsets.to(executor.device),
            "host_kv_cache_block_offsets": host_offsets,
            "host_kv_cache_pool_pointers": torch.tensor([[cache.pool.data_ptr(), 0]], dtype=torch.int64),
            "host_kv_cache_pool_mapping": torch.tensor(
                [[0, layer] for layer in range(limits.num_layers)], dtype=torch.int32
            ),
            "host_max_attention_window_sizes": torch.full(
                (limits.num_layers,), limits.max_seq_len, dtype=torch.int32
            ),
            "host_sink_token_length": torch.zeros(1, dtype=torch.int32),
            "cache_indirection": torch.zeros(
                (1, 1, limits.max_seq_len), dtype=torch.int32, device=executor.device
            ),
            "host_runtime_perf_knobs": torch.full((16,), -1, dtype=torch.int64),
            "host_context_progress": torch.zeros(1, dtype=torch.int64),
        }
        self._tensors["host_runtime_perf_knobs"][[_MULTI_BLOCK_MODE, _FMHA_FP32_ACCUMULATION]] = 1

    def fill(self, sequence: Sequence, ids: list[int], tails: Tails, *, prefill: bool) -> dict[str, Tensor]:
        """Tensors for running `ids` after the rows that `sequence` holds; its block table covers them
        already."""
        past, num_new = sequence.num_rows, len(ids)
        total = past + num_new
        context_length = num_new if prefill else sequence.prompt_rows
        if self._table != sequence.block_table:
            self._set_offsets(sequence.block_table)
        tensors = dict(self._tensors)
        tensors["input_ids"] = self._device(ids)
        tensors["position_ids"] = self._device(list(range(past, total)))
        tensors["last_token_ids"] = self._device([num_new])
        tensors["sequence_length"] = self._device([total])
        tensors["context_lengths"] = self._device([context_length])
        tensors["host_context_lengths"] = _host([context_length])
        tensors["host_past_key_value_lengths"] = _host([total if prefill else past])
        tensors["host_request_types"] = _host([CONTEXT if prefill else GENERATION])
        if self._executor.can_defer_tails:
            starts = [
                sequence.text_rows if tails.text else total,
                sequence.audio_rows if tails.audio else total,
            ]
            tensors["host_tail_start"] = _host(starts)
        return tensors

    def _set_offsets(self, block_table: list[int]) -> None:
        offsets = self._cache.offsets(block_table, self._executor.limits.max_blocks)
        self._tensors["host_kv_cache_block_offsets"] = offsets
        self._tensors["kv_cache_block_offsets"] = offsets.to(self._executor.device)
        self._table = list(block_table)

    def _device(self, values: list[int]) -> Tensor:
        return _host(values).to(self._executor.device)


def _host(values: list[int]) -> Tensor:
    # by way of numpy, which takes half the time of torch.tensor
    return torch.from_numpy(np.array(values, dtype=np.int32))
