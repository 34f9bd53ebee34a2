"""Fills the named tensors of a forward step, with the values that a TensorRT-LLM 1.x engine expects.

In: a sequence whose blocks are reserved, and the ids to run. Out: the dict of tensors for `Executor.forward`.
Constant tensors are created once, the block offsets when the block table changes; a decode step updates the
tensors of the previous one in place. Engine thread.

    tensor                          prefill (context)         decode (generation)
    input_ids, position_ids         n ids, p..p+n-1           1 id, p
    last_token_ids                  n (1-based)               1
    sequence_length                 p + n                     p + 1
    (host_)context_lengths          n                         rows at the end of the last prefill
    host_past_key_value_lengths     p + n                     p
    host_request_types              0                         1
    host_tail_start                 first row each tail must run; the new length = skip the tail
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine_runtime.lm.executor import CONTEXT, GENERATION, Executor
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.sampling_metadata import SamplingMetadata
from engine_runtime.lm.sequence import Sequence

_MULTI_BLOCK_MODE, _FMHA_FP32_ACCUMULATION = 0, 1


@dataclass(frozen=True, slots=True)
class Tails:
    """Which tails a step runs. A skipped tail is filled from kept trunk outputs when it is needed.

    `sampling` requests the next ids from a SamplingExecutor in place of the logits.
    """

    text: bool = True
    audio: bool = True
    sampling: SamplingMetadata | None = None


BOTH_TAILS = Tails()


class StepInputBuilder:
    """Builds the tensors of successive steps for one executor and one KV pool."""

    def __init__(self, executor: Executor, cache: KVCache) -> None:
        limits = executor.limits
        self._executor, self._cache = executor, cache
        self._table: list[int] = []
        self._kept: dict[str, tuple[Tensor, NDArray[np.int32]]] = {}
        """Tensors of a decode step, and the arrays that share their memory."""
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
        """Tensors for running `ids` after the rows of `sequence`, whose block table already covers them. The
        tensors of a decode step are valid until the next `fill`."""
        past, num_new = sequence.num_rows, len(ids)
        total = past + num_new
        context_length = num_new if prefill else sequence.prompt_rows
        if self._table != sequence.block_table:
            self._set_offsets(sequence.block_table)
        values = {
            "input_ids": ids,
            "position_ids": list(range(past, total)),
            "last_token_ids": [num_new],
            "sequence_length": [total],
            "context_lengths": [context_length],
            "host_context_lengths": [context_length],
            "host_past_key_value_lengths": [total if prefill else past],
            "host_request_types": [CONTEXT if prefill else GENERATION],
        }
        if self._executor.supports_deferred_tails:
            values["host_tail_start"] = [
                sequence.text_rows if tails.text else total,
                sequence.audio_rows if tails.audio else total,
            ]
        tensors = dict(self._tensors)
        for name, value in values.items():
            tensor = _host(value)[0] if prefill else self._written(name, value)
            tensors[name] = tensor if name.startswith("host_") else tensor.to(self._executor.device)
        return tensors

    def _written(self, name: str, value: list[int]) -> Tensor:
        if name not in self._kept:
            self._kept[name] = _host(value)
        tensor, memory = self._kept[name]
        memory[:] = value
        return tensor

    def _set_offsets(self, block_table: list[int]) -> None:
        offsets = self._cache.offsets(block_table, self._executor.limits.max_blocks)
        self._tensors["host_kv_cache_block_offsets"] = offsets
        self._tensors["kv_cache_block_offsets"] = offsets.to(self._executor.device)
        self._table = list(block_table)


def _host(values: list[int]) -> tuple[Tensor, NDArray[np.int32]]:
    # via numpy, which takes half the time of torch.tensor
    memory = np.array(values, dtype=np.int32)
    return torch.from_numpy(memory), memory
