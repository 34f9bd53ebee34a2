"""The 17 named tensors of a step, with the values that a TensorRT-LLM 1.x engine expects.

In: the sequences of a ScheduledBatch (lm/step.py), prefills first. Out: the tensors for `TrtllmExecutor.run`,
in host memory. Constant tensors are created once, the block offsets of a sequence when its block table
changes; a decode step updates the tensors of the previous one of as many sequences in place. Engine thread.

    tensor                          prefill (context)         decode (generation)
    input_ids, position_ids         n ids, p..p+n-1           1 id, p
    last_token_ids                  n more than the sequence before (1-based)
    sequence_length                 p + n                     p + 1
    (host_)context_lengths          n                         rows at the end of the last prefill
    host_past_key_value_lengths     p + n                     p
    host_request_types              0                         1

n = new rows, p = rows already in the cache. input_ids and position_ids hold the rows of one sequence after
those of the other, without padding; the other tensors have one entry per sequence. The attention plugin
takes the first sequences for context requests, up to the first generation request. Beam 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
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

CACHE_INDIRECTION = "cache_indirection"
"""Always zeros: with one beam the plugin reads only its shape."""

StepTensors = Mapping[str, Tensor]
Size = int | Literal["rows", "sequences"]
"""Size of an axis: a number, the new rows of a step, or its sequences."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One named input."""

    name: str
    dtype: torch.dtype
    place: Literal["device", "host"]
    shape: tuple[Size, ...]

    def sized(self, rows: int, sequences: int) -> tuple[int, ...]:
        """Its shape in a step of this size."""
        sizes = {"rows": rows, "sequences": sequences}
        return tuple(size if isinstance(size, int) else sizes[size] for size in self.shape)


def step_spec(limits: ExecutorLimits) -> tuple[TensorSpec, ...]:
    """Every input of a step; the values are documented at the top of the module."""
    i32, i64 = torch.int32, torch.int64
    layers, blocks = limits.num_layers, limits.max_blocks
    return (
        TensorSpec("input_ids", i32, "device", ("rows",)),
        TensorSpec("position_ids", i32, "device", ("rows",)),
        TensorSpec("last_token_ids", i32, "device", ("sequences",)),
        TensorSpec("sequence_length", i32, "device", ("sequences",)),
        TensorSpec("context_lengths", i32, "device", ("sequences",)),
        TensorSpec("host_context_lengths", i32, "host", ("sequences",)),
        TensorSpec("host_past_key_value_lengths", i32, "host", ("sequences",)),
        TensorSpec("host_request_types", i32, "host", ("sequences",)),
        TensorSpec("kv_cache_block_offsets", i32, "device", (1, "sequences", 2, blocks)),
        TensorSpec("host_kv_cache_block_offsets", i32, "host", (1, "sequences", 2, blocks)),
        TensorSpec("host_kv_cache_pool_pointers", i64, "host", (1, 2)),
        TensorSpec("host_kv_cache_pool_mapping", i32, "host", (layers, 2)),
        TensorSpec("host_max_attention_window_sizes", i32, "host", (layers,)),
        TensorSpec("host_sink_token_length", i32, "host", (1,)),
        TensorSpec(CACHE_INDIRECTION, i32, "device", ("sequences", 1, limits.max_seq_len)),
        TensorSpec("host_runtime_perf_knobs", i64, "host", (16,)),
        TensorSpec("host_context_progress", i64, "host", (1,)),
    )


class StepInputBuilder:
    """Builds the tensors of successive steps over one KV pool."""

    def __init__(self, limits: ExecutorLimits, cache: KVCache) -> None:
        most = limits.max_batch_size
        self._limits = limits
        self._kept: dict[tuple[str, int], tuple[Tensor, NDArray[np.int32]]] = {}
        """Tensors of decode steps by their size, and the arrays that share their memory."""
        self._tables: list[list[int]] = [[] for _ in range(most)]
        self._offsets = block_offsets([], limits).repeat(1, most, 1, 1)
        self._cache_indirection = torch.zeros((most, 1, limits.max_seq_len), dtype=torch.int32)
        self._views: dict[int, dict[str, Tensor]] = {}
        """Tensors that all sequences have a part of, by the number of sequences."""
        self._constants: dict[str, Tensor] = {
            "host_kv_cache_pool_pointers": torch.tensor([[cache.pool.data_ptr(), 0]], dtype=torch.int64),
            "host_kv_cache_pool_mapping": torch.tensor(
                [[0, layer] for layer in range(limits.num_layers)], dtype=torch.int32
            ),
            "host_max_attention_window_sizes": torch.full(
                (limits.num_layers,), limits.max_seq_len, dtype=torch.int32
            ),
            "host_sink_token_length": torch.zeros(1, dtype=torch.int32),
            "host_runtime_perf_knobs": torch.full((16,), -1, dtype=torch.int64),
            "host_context_progress": torch.zeros(1, dtype=torch.int64),
        }
        self._constants["host_runtime_perf_knobs"][[_MULTI_BLOCK_MODE, _FMHA_FP32_ACCUMULATION]] = 1

    def fill(self, sequences: Sequence[ScheduledSequence]) -> dict[str, Tensor]:
        """The tensors of a step, prefills first. They are valid until the next `fill`."""
        for index, scheduled in enumerate(sequences):
            if self._tables[index] != scheduled.block_table:
                self._tables[index] = list(scheduled.block_table)
                self._offsets[0, index] = block_offsets(scheduled.block_table, self._limits)[0, 0]
        context_lengths = [
            one.prompt_tokens if not one.is_prefill else len(one.token_ids) for one in sequences
        ]
        values = {
            "input_ids": [id_ for one in sequences for id_ in one.token_ids],
            "position_ids": [row for one in sequences for row in range(one.first_position, one.num_tokens)],
            "last_token_ids": list(accumulate(len(one.token_ids) for one in sequences)),
            "sequence_length": [one.num_tokens for one in sequences],
            "context_lengths": context_lengths,
            "host_context_lengths": context_lengths,
            "host_past_key_value_lengths": [
                one.num_tokens if one.is_prefill else one.first_position for one in sequences
            ],
            "host_request_types": [CONTEXT if one.is_prefill else GENERATION for one in sequences],
        }
        tensors = self._constants | self._of_all(len(sequences))
        has_prefill = any(one.is_prefill for one in sequences)
        for name, value in values.items():
            tensors[name] = _host(value)[0] if has_prefill else self._written(name, value)
        return tensors

    def _written(self, name: str, value: Sequence[int]) -> Tensor:
        key = name, len(value)
        if key not in self._kept:
            self._kept[key] = _host(value)
        tensor, memory = self._kept[key]
        memory[:] = value
        return tensor

    def _of_all(self, count: int) -> dict[str, Tensor]:
        # kept, so that an unchanged tensor is the same object in the next step (see StepMemory)
        if count not in self._views:
            offsets = self._offsets[:, :count]
            self._views[count] = {
                "kv_cache_block_offsets": offsets,
                "host_kv_cache_block_offsets": offsets,
                CACHE_INDIRECTION: self._cache_indirection[:count],
            }
        return self._views[count]


def packing_order(sequences: Sequence[ScheduledSequence]) -> list[int]:
    """Indices of the sequences in the order in which an engine takes them: prefills first."""
    return sorted(range(len(sequences)), key=lambda index: not sequences[index].is_prefill)


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
