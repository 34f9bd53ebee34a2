"""Attention of a decode step of several sequences as one kernel in CUDA C++
(cuda/kernels/paged_attention), which reads K and V at the bandwidth of device memory, where GPU and sizes
support it.

In: partial sums of q, k and v, the KV pool, the fields of BatchInputs. Out: the heads' outputs; K and V of
the new rows in the pool. The reference implementation is kernels/batched_attention.py in Triton. Engine
thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine_runtime.cuda.compiled_kernel import CompiledKernel, kernel_files, layout_header
from engine_runtime.cuda.driver import shared_memory_limit
from engine_runtime.cuda.gpu_memory import BATCH_SPLIT_ROWS
from engine_runtime.cuda.graphs import padded_size
from engine_runtime.executors.cuda.batch_inputs import GROUP_ROWS, BatchInputs
from engine_runtime.executors.cuda.weights import LayerWeights, Network
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.step import MAX_JOINT_ROWS
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.quantization import FP8

_COMPUTE_WARPS = 8
_TILE_ROWS = 16
_MAX_STAGES, _MIN_STAGES = 24, 8
"""Stages of the ring, multiples of the compute warps: as many as fit."""
_MAX_PART_TILES = 128
"""Tiles of a partition, at most: one block reads it."""
_FULL_ROWS = 16
"""From so many rows on a group is a single partition: with eight K/V heads, one for each multiprocessor."""
_RING_AT = 33792
"""Bytes of shared memory before the ring, which attend.cu asserts."""


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """Sizes for which the kernel is compiled. `shared_limit`: bytes of shared memory that a block can
    have."""

    config: MossLMConfig
    tokens_per_block: int
    kv_dtype: torch.dtype
    capacity: int
    max_blocks: int
    shared_limit: int

    @property
    def num_stages(self) -> int:
        """Stages of the ring, of one tile of K and V each."""
        fitting = (self.shared_limit - _RING_AT) // self._stage_bytes
        return min(_MAX_STAGES, fitting - fitting % _COMPUTE_WARPS)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return _RING_AT + self.num_stages * self._stage_bytes

    @property
    def _stage_bytes(self) -> int:
        return 2 * _TILE_ROWS * self.config.head_dim * self.kv_dtype.itemsize

    def header(self) -> str:
        """Text of layout.cuh."""
        config = self.config
        constants: dict[str, int | str] = {
            "HEADS": config.num_attention_heads,
            "KV_HEADS": config.num_key_value_heads,
            "DIM": config.head_dim,
            "GROUP": config.num_attention_heads // config.num_key_value_heads,
            "GROUP_ROWS": GROUP_ROWS,
            "TOKENS": self.tokens_per_block,
            "KV_FP8": int(self.kv_dtype == FP8),
            "SOFTMAX_SCALE": f"{config.head_dim**-0.5!r}f",
            "CAPACITY": self.capacity,
            "MAX_BLOCKS": self.max_blocks,
            "COMPUTE_WARPS": _COMPUTE_WARPS,
            "TILE_ROWS": _TILE_ROWS,
            "RING_STAGES": self.num_stages,
            "RING_AT": _RING_AT,
            "MAX_PART_TILES": _MAX_PART_TILES,
            "MAX_NEW_ROWS": MAX_JOINT_ROWS,
            "EPS": f"{config.rms_norm_eps!r}f",
            "Q_STRIDE": config.head_dim * 2 + 64,  # the heads' rows start in different banks
        }
        return layout_header(constants)


def unsupported_reason(config: MossLMConfig, cache: KVCache) -> str | None:
    """Why the kernel cannot run; None if it can."""
    device = cache.pool.device
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (9, 0):
        return "it needs a GPU of compute capability 9.0 or later"
    if cache.trunk.dtype != torch.bfloat16:
        return "it needs bfloat16"
    if config.head_dim != 128 or config.num_attention_heads != 4 * config.num_key_value_heads:
        return "it needs heads of 128, four for each K/V head"
    if cache.tokens_per_block % _TILE_ROWS:
        return f"it needs KV blocks of a multiple of {_TILE_ROWS} rows"
    return None


def kernel_source(layout: AttentionLayout) -> tuple[str, dict[str, str]]:
    """CUDA C++ source of the kernel, and the headers that it includes, by name."""
    source, headers = kernel_files("paged_attention", "attend.cu")
    return source, headers | {"layout.cuh": layout.header()}


@dataclass(frozen=True, slots=True)
class PartitionBuffers:
    """What partitions of the rows exchange, all float32 except `arrived`.

    Attributes:
        sums, tops, totals: weighted sums of V [partitions, capacity, heads, dim], maxima and sums of weights
            [partitions, capacity, heads].
        arrived: partitions that are done [capacity, K/V heads] int32, zeros between two kernels.
    """

    sums: Tensor
    tops: Tensor
    totals: Tensor
    arrived: Tensor

    @classmethod
    def of(cls, config: MossLMConfig, capacity: int, longest: int, device: torch.device) -> PartitionBuffers:
        """For up to `capacity` rows, of sequences of at most `longest` rows."""
        parts, heads = padded_size(-(-longest // BATCH_SPLIT_ROWS)), config.num_attention_heads
        tops, totals = torch.zeros(2, parts, capacity, heads, device=device)
        return cls(
            torch.zeros(parts, capacity, heads, config.head_dim, device=device),
            tops,
            totals,
            torch.zeros(capacity, config.num_key_value_heads, dtype=torch.int32, device=device),
        )


class PagedAttention:
    """See the module. Raises RuntimeError, ImportError or OSError if the kernel cannot be compiled."""

    def __init__(
        self, network: Network, cache: KVCache, inputs: BatchInputs, partitions: PartitionBuffers
    ) -> None:
        config = network.config
        self._network, self._cache, self._inputs = network, cache, inputs
        self._kv_heads = config.num_key_value_heads
        device = cache.pool.device
        layout = AttentionLayout(
            config,
            cache.tokens_per_block,
            cache.pool.dtype,
            inputs.capacity,
            inputs.table.shape[1],
            shared_memory_limit(device),
        )
        if layout.num_stages < _MIN_STAGES:
            raise RuntimeError("too little shared memory per block")
        source, headers = kernel_source(layout)
        self._kernel = CompiledKernel(source, headers, "attend_units", layout.shared_bytes, device)
        self._partitions = partitions
        self._blocks = torch.cuda.get_device_properties(device).multi_processor_count

    def launch(
        self,
        qkv: Tensor,
        layer: LayerWeights,
        positions: Tensor,
        out: Tensor,
        *,
        rows: int,
        bucket: int,
        splits: int,
    ) -> None:
        """Attend with the first rows of qkv [splits, capacity, ..] float32; the longest sequence has at most
        `bucket` rows."""
        inputs, network, partitions = self._inputs, self._network, self._partitions
        least = min(max(1, _FULL_ROWS // rows), partitions.sums.shape[0])
        most = max(least, _num_parts(bucket))
        self._kernel.launch(
            min(self._blocks, self._kv_heads * rows * most),
            32 * (_COMPUTE_WARPS + 1),
            [
                qkv,
                layer.q_norm,
                layer.k_norm,
                network.cos,
                network.sin,
                self._cache.pool,
                inputs.table,
                positions,
                inputs["sequence"],
                inputs["group_row"],
                inputs["group_count"],
                inputs["group_first"],
                partitions.sums,
                partitions.tops,
                partitions.totals,
                partitions.arrived,
                out,
                int(out.dtype == torch.float16),
                self._cache.layer_offset(layer.index),
                rows,
                least,
                most,
                splits,
            ],
            starts_early=True,
        )


def _num_parts(rows: int) -> int:
    """Partitions of so many rows in the pool, where nothing but their size matters."""
    return -(-rows // (_MAX_PART_TILES * _TILE_ROWS))
