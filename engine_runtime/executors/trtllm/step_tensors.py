"""The 17 named tensors of a step, with the values that a TensorRT-LLM 1.x engine expects.

In: a ScheduledSequence (lm/step.py). Out: the tensors for `TrtllmExecutor.run`, in host memory. Constant
tensors are created once, the block offsets when the block table changes; a decode step updates the tensors of
the previous one in place. Engine thread.

    tensor                          prefill (context)         decode (generation)
    input_ids, position_ids         n ids, p..p+n-1           1 id, p
    last_token_ids                  n (1-based)               1
    sequence_length                 p + n                     p + 1
    (host_)context_lengths          n                         rows at the end of the last prefill
    host_past_key_value_lengths     p + n                     p
    host_request_types              0                         1

Batch 1, beam 1. n = new rows, p = rows already in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.step import ExecutorLimits, ScheduledSequence

CONTEXT, GENERATION = 0, 1
"""Values of `host_request_types`: rows of a prompt (prefill), or one sampled row (decode)."""
_MULTI_BLOCK_MODE, _FMHA_FP32_ACCUMULATION = 0, 1

StepTensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One named input. `shape` holds fixed sizes; None = variable (n rows)."""

    name: str
    dtype: torch.dtype
    place: Literal["device", "host"]
    shape: tuple[int | None, ...]


def step_spec(limits: ExecutorLimits) -> tuple[TensorSpec, ...]:
    """Every input of a step; the values are documented at the top of the module."""
    i32, i64 = torch.int32, torch.int64
    layers, blocks = limits.num_layers, limits.max_blocks
    return (
        TensorSpec("input_ids", i32, "device", (None,)),
        TensorSpec("position_ids", i32, "device", (None,)),
        TensorSpec("last_token_ids", i32, "device", (1,)),
        TensorSpec("sequence_length", i32, "device", (1,)),
        TensorSpec("context_lengths", i32, "device", (1,)),
        TensorSpec("host_context_lengths", i32, "host", (1,)),
        TensorSpec("host_past_key_value_lengths", i32, "host", (1,)),
        TensorSpec("host_request_types", i32, "host", (1,)),
        TensorSpec("kv_cache_block_offsets", i32, "device", (1, 1, 2, blocks)),
        TensorSpec("host_kv_cache_block_offsets", i32, "host", (1, 1, 2, blocks)),
        TensorSpec("host_kv_cache_pool_pointers", i64, "host", (1, 2)),
        TensorSpec("host_kv_cache_pool_mapping", i32, "host", (layers, 2)),
        TensorSpec("host_max_attention_window_sizes", i32, "host", (layers,)),
        TensorSpec("host_sink_token_length", i32, "host", (1,)),
        TensorSpec("cache_indirection", i32, "device", (1, 1, limits.max_seq_len)),
        TensorSpec("host_runtime_perf_knobs", i64, "host", (16,)),
        TensorSpec("host_context_progress", i64, "host", (1,)),
    )


class StepInputBuilder:
    """Builds the tensors of successive steps over one KV pool."""

    def __init__(self, limits: ExecutorLimits, cache: KVCache) -> None:
        self._limits = limits
        self._table: list[int] = []
        self._kept: dict[str, tuple[Tensor, NDArray[np.int32]]] = {}
        """Tensors of a decode step, and the arrays that share their memory."""
        host_offsets = block_offsets([], limits)
        self._tensors: dict[str, Tensor] = {
            "kv_cache_block_offsets": host_offsets.clone(),
            "host_kv_cache_block_offsets": host_offsets,
            "host_kv_cache_pool_pointers": torch.tensor([[cache.pool.data_ptr(), 0]], dtype=torch.int64),
            "host_kv_cache_pool_mapping": torch.tensor(
                [[0, layer] for layer in range(limits.num_layers)], dtype=torch.int32
            ),
            "host_max_attention_window_sizes": torch.full(
                (limits.num_layers,), limits.max_seq_len, dtype=torch.int32
            ),
            "host_sink_token_length": torch.zeros(1, dtype=torch.int32),
            "cache_indirection": torch.zeros((1, 1, limits.max_seq_len), dtype=torch.int32),
            "host_runtime_perf_knobs": torch.full((16,), -1, dtype=torch.int64),
            "host_context_progress": torch.zeros(1, dtype=torch.int64),
        }
        self._tensors["host_runtime_perf_knobs"][[_MULTI_BLOCK_MODE, _FMHA_FP32_ACCUMULATION]] = 1

    def fill(self, scheduled: ScheduledSequence) -> dict[str, Tensor]:
        """The tensors of a step. Those of a decode step are valid until the next `fill`."""
        ids, past, total = scheduled.token_ids, scheduled.first_position, scheduled.num_rows
        is_prefill = scheduled.is_prefill
        context_length = len(ids) if is_prefill else scheduled.prompt_rows
        if self._table != scheduled.block_table:
            self._set_offsets(scheduled.block_table)
        values = {
            "input_ids": ids,
            "position_ids": range(past, total),
            "last_token_ids": [len(ids)],
            "sequence_length": [total],
            "context_lengths": [context_length],
            "host_context_lengths": [context_length],
            "host_past_key_value_lengths": [total if is_prefill else past],
            "host_request_types": [CONTEXT if is_prefill else GENERATION],
        }
        tensors = dict(self._tensors)
        for name, value in values.items():
            tensors[name] = _host(value)[0] if is_prefill else self._written(name, value)
        return tensors

    def _written(self, name: str, value: Sequence[int]) -> Tensor:
        if name not in self._kept:
            self._kept[name] = _host(value)
        tensor, memory = self._kept[name]
        memory[:] = value
        return tensor

    def _set_offsets(self, block_table: Sequence[int]) -> None:
        offsets = block_offsets(block_table, self._limits)
        self._tensors["host_kv_cache_block_offsets"] = offsets
        self._tensors["kv_cache_block_offsets"] = offsets.clone()
        self._table = list(block_table)


def block_offsets(block_table: Sequence[int], limits: ExecutorLimits) -> Tensor:
    """[1 pool, 1 sequence, 2 (K, V), max_blocks] int32, as lm/kv_cache.py counts them; unused entries are 0
    (K) and 1 (V)."""
    table = torch.zeros(limits.max_blocks, dtype=torch.int32)
    table[: len(block_table)] = torch.tensor(block_table, dtype=torch.int32)
    k_offsets = table * (limits.num_layers * 2)
    return torch.stack((k_offsets, k_offsets + 1))[None, None]


def _host(values: Sequence[int]) -> tuple[Tensor, NDArray[np.int32]]:
    # via numpy, which takes half the time of torch.tensor
    memory = np.array(values, dtype=np.int32)
    return torch.from_numpy(memory), memory
