"""Attention of a decode step of several sequences as one kernel in CUDA C++
(cuda/kernels/paged_attention), which reads K and V at the bandwidth of device memory, where GPU and sizes
support it. Another one plans once a step what its blocks attend to.

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
from engine_runtime.cuda.gpu_memory import BATCH_PLAN_BYTES, BATCH_SPLIT_ROWS, BATCH_SPLITS
from engine_runtime.cuda.graphs import padded_size
from engine_runtime.cuda.tensor_map import ROW_BYTES, TensorMap, tensor_map
from engine_runtime.executors.cuda.batch_inputs import GROUP_ROWS, BatchInputs
from engine_runtime.executors.cuda.skinny_gemm import RowFormat
from engine_runtime.executors.cuda.weights import LayerWeights, Network
from engine_runtime.hardware import kernel_capability
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.step import MAX_JOINT_TOKENS
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.quantization import FP8

_COMPUTE_WARPS = 8
_THREADS = 32 * (_COMPUTE_WARPS + 1)
_TILE_ROWS = 16
_MAX_STAGES, _MIN_STAGES = 24, 8
"""Stages of the ring, multiples of the compute warps: as many as fit."""
_MAX_PART_TILES = 128
"""Tiles of a partition, at most: one block reads it."""
_FULL_ROWS = 16
"""With this many tokens a group is a single partition: with eight K/V heads, one per multiprocessor."""
_CLUSTERS = (2, 4, 8)
"""Blocks of a cluster: 8 is the most that every GPU has, and attend.cu divides eight warps by it."""
_RING_AT = 34816
"""Bytes of shared memory before the ring, which attend.cu asserts."""
_BYTES_IN_FLIGHT = 64 << 10
"""Bytes of K and V that a block keeps in flight until it has read q, which would wait behind them. With
96 KB a step of 32 sequences takes up to 1 % longer (H100)."""
_POSITIONS = ("position", "text_position", "audio_position")
"""Fields of BatchInputs by which layers attend: in the trunk, and in each tail."""


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """Sizes for which the kernels are compiled. `max_parts`: partitions that the buffers hold;
    `shared_limit`: bytes of shared memory that a block can have."""

    config: MossLMConfig
    tokens_per_block: int
    kv_dtype: torch.dtype
    capacity: int
    max_blocks: int
    max_parts: int
    shared_limit: int

    @property
    def num_stages(self) -> int:
        """Stages of the ring, of one tile of K and V each."""
        fitting = (self.shared_limit - _RING_AT) // self._stage_bytes
        return min(_MAX_STAGES, fitting - fitting % _COMPUTE_WARPS)

    @property
    def num_in_flight(self) -> int:
        """Tiles that are copied at a time until a block has read q, which copies of the whole ring would hold
        up."""
        return min(self.num_stages, _BYTES_IN_FLIGHT // self._stage_bytes)

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
            "MAX_PARTS": self.max_parts,
            "PLAN_BYTES": BATCH_PLAN_BYTES,
            "COMPUTE_WARPS": _COMPUTE_WARPS,
            "TILE_ROWS": _TILE_ROWS,
            "RING_STAGES": self.num_stages,
            "IN_FLIGHT": self.num_in_flight,
            "RING_AT": _RING_AT,
            "MAX_PART_TILES": _MAX_PART_TILES,
            "MAX_NEW_ROWS": MAX_JOINT_TOKENS,
            "MAX_SPLITS": BATCH_SPLITS,
            "EPS": f"{config.rms_norm_eps!r}f",
            "Q_STRIDE": config.head_dim * 2 + 16,  # the heads' rows start in different banks
        }
        return layout_header(constants)


def unsupported_reason(config: MossLMConfig, cache: KVCache) -> str | None:
    """Why the kernel cannot run; None if it can."""
    device = cache.pool.device
    if kernel_capability(device) < (9, 0):
        return "it needs a GPU of compute capability 9.0 or later"
    if cache.trunk.dtype != torch.bfloat16:
        return "it needs bfloat16"
    if config.head_dim != 128 or config.num_attention_heads != 4 * config.num_key_value_heads:
        return "it needs heads of 128, four for each K/V head"
    if not config.qk_norm:
        return "it needs normalized queries and keys (qk_norm)"
    if cache.tokens_per_block % _TILE_ROWS:
        return f"it needs KV blocks of a multiple of {_TILE_ROWS} rows"
    return None


def kernel_source(layout: AttentionLayout, name: str = "attend.cu") -> tuple[str, dict[str, str]]:
    """CUDA C++ source of a kernel, and the headers that it includes, by name."""
    source, headers = kernel_files("paged_attention", name)
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
    """Raises RuntimeError, ImportError or OSError if the kernel cannot be compiled."""

    def __init__(
        self, network: Network, cache: KVCache, inputs: BatchInputs, partitions: PartitionBuffers
    ) -> None:
        config = network.config
        self._network, self._cache, self._inputs = network, cache, inputs
        self._kv_heads = config.num_key_value_heads
        device = cache.pool.device
        self._layout = layout = AttentionLayout(
            config,
            cache.tokens_per_block,
            cache.pool.dtype,
            inputs.capacity,
            inputs.table.shape[1],
            partitions.sums.shape[0],
            shared_memory_limit(device),
        )
        if layout.num_stages < _MIN_STAGES:
            raise RuntimeError("too little shared memory per block")
        source, headers = kernel_source(layout)
        self._kernel = CompiledKernel(source, headers, "attend_units", layout.shared_bytes, device)
        source, headers = kernel_source(layout, "plan.cu")
        self._planner = CompiledKernel(source, headers, "plan_units", 0, device)
        parts = partitions.sums.shape[0]
        self._plans = torch.zeros(
            len(_POSITIONS), parts, inputs.capacity, BATCH_PLAN_BYTES, dtype=torch.uint8, device=device
        )
        self._plan_of = {
            inputs[name].data_ptr(): plan for name, plan in zip(_POSITIONS, self._plans, strict=True)
        }
        """Plans by the address of the positions that they were made from."""
        self._tiles = _map_of_tiles(cache, config)
        self._partitions = partitions
        self._num_clusters = {size: self._kernel.num_resident_clusters(_THREADS, size) for size in _CLUSTERS}
        """Clusters of each size that run at a time."""
        self._blocks = torch.cuda.get_device_properties(device).multi_processor_count

    def plan(self, rows: int, bucket: int, *, text: bool, audio: bool) -> None:
        """Plan how a step attends, before the first product: attention reads plans before it waits for the
        kernel before. See `launch`; `text`, `audio`: which tails run."""
        inputs = self._inputs
        least, most = self._parts(rows, bucket)
        wanted = (True, text, audio)
        self._planner.launch(
            len(_POSITIONS) * most,
            inputs.capacity,
            [
                *(inputs[name] if wants else None for name, wants in zip(_POSITIONS, wanted, strict=True)),
                inputs.table,
                inputs["sequence"],
                inputs["group_row"],
                inputs["group_count"],
                inputs["group_first"],
                self._plans,
                least,
                most,
            ],
            starts_early=True,
        )

    def _parts(self, rows: int, bucket: int) -> tuple[int, int]:
        """The least and the most partitions of a group."""
        least = min(max(1, _FULL_ROWS // rows), self._partitions.sums.shape[0])
        return least, max(least, _num_parts(bucket))

    def launch(
        self,
        qkv: Tensor,
        layer: LayerWeights,
        positions: Tensor,
        out: Tensor,
        row_format: RowFormat,
        *,
        rows: int,
        bucket: int,
        splits: int,
    ) -> None:
        """Attend with the first rows of qkv [splits, capacity, ..] float32, as planned for this number of
        rows, this bucket and `positions`, a field of the inputs. The longest sequence has at most `bucket`
        rows."""
        inputs, network, partitions = self._inputs, self._network, self._partitions
        least, most = self._parts(rows, bucket)
        units = self._kv_heads * rows * most
        # The partitions of a row are a cluster if all of them run at a time: a block has one unit then.
        fits = most == least and self._kv_heads * rows <= self._num_clusters.get(least, 0)
        self._kernel.launch(
            units if fits else min(self._blocks, units),
            _THREADS,
            [
                self._tiles,
                qkv,
                layer.q_norm,
                layer.k_norm,
                network.cos,
                network.sin,
                self._cache.pool,
                inputs.table,
                self._plan_of[positions.data_ptr()],
                partitions.sums,
                partitions.tops,
                partitions.totals,
                partitions.arrived,
                out,
                row_format,
                self._cache.layer_offset(layer.index),
                rows,
                most,
                splits,
            ],
            cluster=least if fits else 1,
            starts_early=True,
        )


def _map_of_tiles(cache: KVCache, config: MossLMConfig) -> TensorMap:
    """The pool as rows of one head, whose dims are two areas of 64 in bf16 and a single one in fp8; the
    outermost dimension is K and V. A box is a tile of both, swizzled in bf16."""
    pool, dim = cache.pool, config.head_dim
    columns = ROW_BYTES // pool.element_size()
    areas, rows = dim // columns, pool.numel() // dim
    block = config.num_key_value_heads * cache.tokens_per_block * dim
    return tensor_map(
        pool,
        (columns, rows, areas, 2),
        (dim, columns, block),
        (columns, _TILE_ROWS, areas, 2),
        l2_bytes=256,
        is_swizzled=pool.dtype != FP8,
    )


def _num_parts(rows: int) -> int:
    """Partitions of this many cached tokens, where nothing but their size matters."""
    return -(-rows // (_MAX_PART_TILES * _TILE_ROWS))
