"""The operations of a decode step, as Triton kernels: four or five launches a layer.

In: static buffers, weights in any format. Out: as in executors/cuda/operations.py, whose plain torch is the
reference implementation. triton_prefill.py has those of a prefill. Imported only if Triton is available.
Engine thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from engine_runtime.cuda.kernels.attention import attend_row
from engine_runtime.cuda.kernels.linear import row_linear, row_linear_int4, row_linear_int8
from engine_runtime.cuda.kernels.prefill_elementwise import take_slots
from engine_runtime.executors.cuda.inputs import StepInputs
from engine_runtime.executors.cuda.weights import LayerWeights, Network
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.quantization import FP8, GROUP, Matrix

SEQUENCE_TILE = 64
"""Rows per KV tile of an attention program."""
_MOST_PIECES = 64
"""Maximum number of split-KV partitions per K/V head. Up to 4,096 rows a partition is one tile. With eight
K/V heads, 2,048 rows yield two programs per multiprocessor of a large GPU, enough to saturate its memory
bandwidth."""


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """Tiling of a row times a matrix.

    Attributes:
        rows: output rows that a program computes at a time.
        warps: warps per program.
        share: programs per multiprocessor.
        stages: pipeline stages: tiles of `rows` rows in flight or in use.
    """

    rows: int
    warps: int
    share: int
    stages: int


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """The key of an autotuned KernelConfig."""

    format: str
    shape: tuple[int, int]
    is_gated: bool

    @property
    def row_bytes(self) -> int:
        """Bytes of an output row's weights (of both rows if gated), without scales, columns padded."""
        columns = triton.next_power_of_2(-(-self.shape[1] // GROUP) * GROUP)
        halves = {"native": 4, "fp8": 2, "int8": 2, "int4": 1}[self.format]
        return int(columns * halves // 2 * (2 if self.is_gated else 1))


def default_launch(key: ConfigKey) -> KernelConfig:
    """Tiles of about 16 KiB, three stages, two programs per multiprocessor: saturates memory bandwidth."""
    return KernelConfig(rows_of(key, 16384), 4, 2, 3)


def rows_of(key: ConfigKey, tile_bytes: int) -> int:
    """Number of output rows, a power of two, whose weights occupy about `tile_bytes`."""
    wanted = max(1, tile_bytes // key.row_bytes)
    return int(min(16, triton.next_power_of_2(wanted + 1) // 2))


class TritonOperations:
    """See operations.Operations.

    Args:
        launches: autotuned configurations (executors/cuda/autotune.py); default_launch for missing keys.
    """

    def __init__(
        self,
        network: Network,
        cache: KVCache,
        inputs: StepInputs,
        *,
        launches: dict[ConfigKey, KernelConfig] | None = None,
    ) -> None:
        config, device = network.config, cache.pool.device
        self.launches = {} if launches is None else launches
        self._network, self._cache, self._inputs = network, cache, inputs
        heads, dim = config.num_attention_heads, config.head_dim
        self._partial = torch.zeros(_MOST_PIECES, heads, dim, device=device)
        self._tops = torch.zeros(_MOST_PIECES, heads, device=device)
        self._totals = torch.zeros(_MOST_PIECES, heads, device=device)
        self._arrived = torch.zeros(config.num_key_value_heads, dtype=torch.int32, device=device)
        self._fp8_as_bits = lacks_fp8(device)
        self._is_gpu = device.type == "cuda"
        self._processors = 1
        if self._is_gpu:
            self._processors = torch.cuda.get_device_properties(device).multi_processor_count

    def norm_linear(self, x: Tensor, norm: Tensor, matrix: Matrix, out: Tensor) -> None:
        """See Operations."""
        self._linear(x, norm, matrix, None, out)

    def norm_gate_up(self, x: Tensor, norm: Tensor, matrix: Matrix, out: Tensor) -> None:
        """See Operations."""
        self._linear(x, norm, matrix, None, out, is_gated=True)

    def linear_add(self, x: Tensor, matrix: Matrix, residual: Tensor, out: Tensor) -> None:
        """See Operations."""
        self._linear(x, None, matrix, residual, out)

    def attend(self, qkv: Tensor, layer: LayerWeights, bucket: int, out: Tensor) -> None:
        """See Operations."""
        config, cache = self._network.config, self._cache
        pieces = max(1, min(_MOST_PIECES, triton.next_power_of_2(bucket) // SEQUENCE_TILE))
        group = config.num_attention_heads // config.num_key_value_heads
        attend_row[(config.num_key_value_heads, pieces)](
            qkv,
            layer.q_norm,
            layer.k_norm,
            self._network.cos,
            self._network.sin,
            cache.pool,
            self._inputs.table,
            self._inputs.position,
            self._partial,
            self._tops,
            self._totals,
            self._arrived,
            out,
            2 * layer.index,
            config.rms_norm_eps,
            config.head_dim**-0.5,
            HEADS=config.num_attention_heads,
            KV_HEADS=config.num_key_value_heads,
            DIM=config.head_dim,
            GROUP=group,
            GROUP_TILE=max(16, triton.next_power_of_2(group)),  # tensor cores require at least 16 rows
            TOKENS=cache.tokens_per_block,
            TILE=SEQUENCE_TILE,
            PIECES=pieces,
            HAS_MORE=pieces * SEQUENCE_TILE < bucket,
            num_warps=4,
            num_stages=1,
        )

    def _linear(
        self,
        x: Tensor,
        norm: Tensor | None,
        matrix: Matrix,
        residual: Tensor | None,
        out: Tensor,
        *,
        is_gated: bool = False,
    ) -> None:
        key = ConfigKey(matrix.format, matrix.shape, is_gated)
        launch = self.launches.get(key) or default_launch(key)
        num_rows = matrix.shape[0] // 2 if is_gated else matrix.shape[0]
        columns = matrix.shape[1]
        flags = {
            "COLUMNS": columns,
            "WIDTH": triton.next_power_of_2(columns),
            "HAS_NORM": norm is not None,
            "IS_GATED": is_gated,
            "HAS_RESIDUAL": residual is not None,
            "ROWS": launch.rows,
            "STAGES": launch.stages,
            "num_warps": launch.warps,
        }
        # Pointers disabled by a flag are never read; any tensor serves as a placeholder.
        norm = x if norm is None else norm
        residual = x if residual is None else residual
        scale = x if matrix.scale is None else matrix.scale
        grid = (min(triton.cdiv(num_rows, launch.rows), launch.share * self._processors),)
        eps, weight = self._network.config.rms_norm_eps, matrix.weight
        if matrix.format == "int4":
            groups = -(-columns // GROUP)
            flags |= {"NUM_GROUPS": groups, "WIDTH": triton.next_power_of_2(groups * GROUP)}
            row_linear_int4[grid](
                x, norm, weight.view(torch.int32), scale, residual, out, num_rows, eps,
                HAS_ASM=self._is_gpu, **flags,
            )  # fmt: skip
            return
        if matrix.format == "int8" and columns % 4 == 0:
            row_linear_int8[grid](
                x, norm, weight.view(torch.int32), scale, residual, out, num_rows, eps,
                HAS_ASM=self._is_gpu, **flags,
            )  # fmt: skip
            return
        as_bits = self._fp8_as_bits and weight.dtype == FP8
        row_linear[grid](
            x, norm, weight.view(torch.uint8) if as_bits else weight, scale, residual, out, num_rows, eps,
            HAS_SCALE=matrix.scale is not None, FP8_BITS=as_bits, **flags,
        )  # fmt: skip


def take_inputs(host: Tensor, device: Tensor) -> None:
    """Copy the slots [n] of StepInputs; the kernel reads pinned host memory directly."""
    take_slots[(1,)](host, device, SLOTS=host.numel(), num_warps=1)


def lacks_fp8(device: torch.device) -> bool:
    """Whether Triton lacks e4m3 on this GPU, so that the kernels decode its bits instead."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9)
