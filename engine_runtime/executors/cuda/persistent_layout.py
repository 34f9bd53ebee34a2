"""The layout that Python and the persistent decode kernel share: constants, `struct Op`, shared memory.

In: sizes of the network and of the KV pool. Out: the header layout.cuh, which cuda/kernels/persistent_decode
includes, and the same values for Python. Every value is declared here only. Any thread.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntFlag

import torch

from engine_runtime.cuda.compiled_kernel import layout_header
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import WeightFormat
from engine_runtime.quantization import FP8, GROUP

TILE_ROWS = 16
"""Output rows of a tile; also rows of a K or V tile."""
K_TILE_BYTES = 1024
"""Bytes of each weight row per pipeline stage."""
COMPUTE_WARPS = 8
MIN_STAGES, MAX_STAGES = 6, 12
"""Pipeline stages of the ring."""
MAX_KV_SPLITS = 16
"""Split-KV partitions per KV head."""
MAX_OPS = 1024
"""Flags of a launch: flag = launch * MAX_OPS + op."""
LAUNCH_COUNTER, FINISHED_COUNTER, NUM_COUNTERS = 0, 32, 64
"""Counters on the device: number of the launch, blocks that have finished."""
_PARTIAL_SLOTS = 4
_ROW_STRIDE = K_TILE_BYTES + 64
_SCALE_BYTES = K_TILE_BYTES * 2 // GROUP * 2
_STAGE_BYTES = TILE_ROWS * (_ROW_STRIDE + _SCALE_BYTES)
_BARRIER_PAIR_BYTES = 16
_FORMATS: dict[WeightFormat, int] = {"native": 0, "fp8": 1, "int8": 2, "int4": 3}
_C_TYPES: dict[type, str] = {
    ctypes.c_uint64: "unsigned long long",
    ctypes.c_uint32: "unsigned int",
    ctypes.c_uint16: "unsigned short",
}


class OpKind(IntFlag):
    """Bits of `Op.kind`."""

    ATTENTION = 1
    """`scale` and `norm` are those of q and of k."""
    RMS_NORM = 2
    SILU_GATE = 4
    ADD_RESIDUAL = 8
    FLOAT32_OUT = 16
    """`out` is float32 without flags."""
    QUANTIZED = 32
    """The weight is in FORMAT, otherwise native."""
    FROM_EMBEDDING = 64
    """`x` (or `residual`) is the embedding table without flags, indexed by the token."""
    KEEP_TRUNK = 128
    """Flag: also write to the kept outputs of the trunk."""


class Op(ctypes.Structure):
    """One op of a step.

    `source` is the index of the op that wrote x, `tiles` those of output rows, `columns` the width of x,
    `extra` the rows of `gate`, or the layer's offset in the block table.
    """

    _fields_ = (
        ("weight", ctypes.c_uint64),
        ("scale", ctypes.c_uint64),
        ("norm", ctypes.c_uint64),
        ("x", ctypes.c_uint64),
        ("residual", ctypes.c_uint64),
        ("out", ctypes.c_uint64),
        ("kind", ctypes.c_uint16),
        ("source", ctypes.c_uint16),
        ("tiles", ctypes.c_uint32),
        ("columns", ctypes.c_uint32),
        ("extra", ctypes.c_uint32),
    )


def max_records(config: MossLMConfig) -> int:
    """Length of the longest op list: five ops per layer, two heads, the terminating empty op."""
    return 5 * config.num_layers + 3


def max_stages(config: MossLMConfig, shared_bytes: int) -> int:
    """Pipeline stages for which a block's `shared_bytes` of shared memory suffice, at most MAX_STAGES."""
    return min(MAX_STAGES, (shared_bytes - _shared_memory(config)["AT_RING"]) // _STAGE_BYTES)


@dataclass(frozen=True, slots=True)
class KernelLayout:
    """Sizes for which the kernel is compiled. `weight_format` is that of weights that are not native."""

    config: MossLMConfig
    weight_format: WeightFormat
    tokens_per_block: int
    kv_dtype: torch.dtype
    kv_splits: int
    num_stages: int

    @property
    def producer_warps(self) -> int:
        """Producer warps: more of them issue copies sooner, but each splits the int4 scales into smaller
        copies."""
        return 2 if self.weight_format == "int4" else 4

    @property
    def num_threads(self) -> int:
        """Threads of a block: compute warps, the epilogue warp, producer warps."""
        return 32 * (COMPUTE_WARPS + 1 + self.producer_warps)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return _shared_memory(self.config)["AT_RING"] + self.num_stages * _STAGE_BYTES

    @property
    def split_stats_at(self) -> int:
        """Offset of the partitions' maxima and totals, behind their sums, in bytes."""
        return self.kv_splits * self.config.num_attention_heads * self.config.head_dim * 8

    @property
    def split_bytes(self) -> int:
        """Bytes of the partitions' sums, maxima and totals, with their flags."""
        return self.split_stats_at + self.kv_splits * self.config.num_attention_heads * 16

    def header(self) -> str:
        """Text of layout.cuh."""
        fields = [f"  {_C_TYPES[c_type]} {name};" for name, c_type in Op._fields_]
        # Both sides have the fields in this order without padding, so that equal sizes mean equal offsets.
        check = f'static_assert(sizeof(Op) == {ctypes.sizeof(Op)}, "Op");'
        return layout_header(self._constants(), "struct Op {", *fields, "};", check)

    def _constants(self) -> dict[str, int | str]:
        config = self.config
        return {
            "HIDDEN": config.hidden_size,
            "HEADS": config.num_attention_heads,
            "KV_HEADS": config.num_key_value_heads,
            "DIM": config.head_dim,
            "EPS": f"{config.rms_norm_eps!r}f",
            "SOFTMAX_SCALE": f"{config.head_dim**-0.5!r}f",
            "MAX_WIDTH": _max_width(config),
            "TOKENS": self.tokens_per_block,
            "KV_FP8": int(self.kv_dtype == FP8),
            "KV_SPLITS": self.kv_splits,
            "SPLIT_STATS_AT": self.split_stats_at,
            **{name.upper(): value for name, value in _FORMATS.items()},
            "FORMAT": _FORMATS[self.weight_format],
            "INT4_GROUP": GROUP,
            "COMPUTE_WARPS": COMPUTE_WARPS,
            "PRODUCER_WARPS": self.producer_warps,
            "BLOCK_THREADS": self.num_threads,
            "STAGES": self.num_stages,
            "MAX_STAGES": MAX_STAGES,
            "TILE_ROWS": TILE_ROWS,
            "K_TILE_BYTES": K_TILE_BYTES,
            "ROW_STRIDE": _ROW_STRIDE,
            "SCALE_BYTES": _SCALE_BYTES,
            "STAGE_BYTES": _STAGE_BYTES,
            "PARTIAL_SLOTS": _PARTIAL_SLOTS,
            "X_PLANE_BYTES": _x_plane_bytes(config),
            "Q_STRIDE": _q_stride(config),
            "ATTENTION_BYTES": _attention_bytes(config),
            **_shared_memory(config),
            "MAX_OPS": MAX_OPS,
            "LAUNCH_COUNTER": LAUNCH_COUNTER,
            "FINISHED_COUNTER": FINISHED_COUNTER,
            **{kind.name or "": int(kind) for kind in OpKind},
        }


def _shared_memory(config: MossLMConfig) -> dict[str, int]:
    """Offsets of the regions of shared memory in bytes; the last one is the ring of pipeline stages: each 16
    rows with padding, which avoids bank conflicts and holds the scales of fp8 and int8, then int4 scales;
    during attention two tiles of K and V."""
    sizes = {
        # mbarriers, full and empty: of each stage (full: one arrival per producer, plus bytes; empty: one per
        # compute warp), then of each slot of partial sums (full: one per compute warp; empty: one)
        "AT_BARRIERS": _BARRIER_PAIR_BYTES * (MAX_STAGES + _PARTIAL_SLOTS),
        # float32 per compute warp: the sum of squares and the largest magnitude of x
        "AT_REDUCE": 2 * COMPUTE_WARPS * 4,
        # what the sums of a tile are multiplied by
        "AT_FACTORS": _PARTIAL_SLOTS * TILE_ROWS * 4,
        # slot, compute warp, output row
        "AT_PARTIALS": _PARTIAL_SLOTS * COMPUTE_WARPS * TILE_ROWS * 4,
        # int4: sums of the high and low bytes of x per group
        "AT_X_SUMS": _max_width(config) // GROUP * 8,
        # bfloat16 (native), float16 (fp8), planes of high and low bytes (int8, int4); or AttentionShared
        "AT_X": max(2 * _x_plane_bytes(config), _attention_bytes(config)),
        "AT_OPS": max_records(config) * ctypes.sizeof(Op),
    }
    offsets, end = {}, 0
    for name, size in sizes.items():
        offsets[name] = end
        end += -(-size // 128) * 128
    return offsets | {"AT_RING": end}


def _max_width(config: MossLMConfig) -> int:
    """Width of the widest x."""
    return max(config.hidden_size, config.intermediate_size, config.num_attention_heads * config.head_dim)


def _x_plane_bytes(config: MossLMConfig) -> int:
    """High bytes, then low bytes of x, in different banks."""
    return _max_width(config) + 64


def _q_stride(config: MossLMConfig) -> int:
    """Bytes between the rows of q, which start in different banks."""
    return config.head_dim * 2 + 64


def _attention_bytes(config: MossLMConfig) -> int:
    """sizeof(AttentionShared), which attention.cuh asserts."""
    group, dim = config.num_attention_heads // config.num_key_value_heads, config.head_dim
    per_warp = 16 * 16 + 16 + 2 * 16 + group * dim * 4
    return group * (_q_stride(config) + dim * 4) + 2 * dim * 4 + COMPUTE_WARPS * per_warp
