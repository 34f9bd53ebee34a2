"""A few rows times a weight in any format, by the Triton kernels of cuda/kernels/batched_linear.py; in bf16
and fp8 by the kernel in CUDA C++ of skinny_gemm.py where it can run.

In: rows [capacity, in], a Matrix. Out: float32 partial sums [num_splits(matrix), capacity, out] in the
caller's flat buffer, or for gate and up rows [capacity, inner]. Imported only if Triton is available. Engine
thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from engine_runtime.cuda.driver import LARGE_SHARED_MEMORY, shared_memory_limit
from engine_runtime.cuda.gpu_memory import BATCH_SPLITS
from engine_runtime.cuda.kernels.batched_linear import batch_linear
from engine_runtime.cuda.kernels.pdl import pdl_launch_args
from engine_runtime.cuda.kernels.prefill_elementwise import gate_rows
from engine_runtime.cuda.kernels.small_batch_linear import small_batch_linear_int4
from engine_runtime.executors.cuda.skinny_gemm import (
    RowFormat,
    RowNorms,
    SkinnyGemm,
    can_multiply,
)
from engine_runtime.executors.cuda.triton_linear import lacks_fp8
from engine_runtime.hardware import kernel_capability
from engine_runtime.quantization import FP8, GROUP, Matrix

SMALLEST_TILE = 16
"""Rows of a matrix instruction: fewer take as long."""
_OUTPUTS = 64
"""Outputs per program that `triton_splits` assumes."""
_MIN_PROGRAMS = 192
"""Programs that keep enough weights in flight on a large GPU."""
_MIN_COLUMNS = 512
"""A split reads at least this many inputs."""
_TMA_COLUMNS = 16
"""TMA reads rows of multiples of 16 bytes: multiples of this many values are, in every format."""


@dataclass(frozen=True, slots=True)
class BatchTiling:
    """How a product is computed.

    Attributes:
        outputs, block: outputs per program, inputs per tile.
        warps, stages: of a program, of its pipeline.
        prefetch_bytes: of each weight row, requested while the kernel before still runs.
        uses_tma: whether tiles are copied by TMA.
        starts_next_late: whether the next kernel starts when the weights were read.
        smallest_rows: fewer rows are padded.
    """

    outputs: int
    block: int
    warps: int
    stages: int
    prefetch_bytes: int = 256
    uses_tma: bool = False
    starts_next_late: bool = False
    smallest_rows: int = SMALLEST_TILE


def triton_splits(matrix: Matrix) -> int:
    """Parts that the inputs of a product are split into: enough programs for every multiprocessor of a large
    GPU. Independent of the number of rows, so that the parts are the same in a batch of any size."""
    tiles, splits = -(-matrix.shape[0] // _OUTPUTS), 1
    if matrix.format == "int4":
        return 1
    while (
        tiles * splits < _MIN_PROGRAMS
        and splits < BATCH_SPLITS
        and matrix.shape[1] % (2 * splits * _MIN_COLUMNS) == 0
    ):
        splits *= 2
    return splits


def tiling_of(rows: int, matrix: Matrix, *, is_gated: bool, is_large: bool) -> BatchTiling:
    """The tiling of a product of `rows` rows: the fastest ones measured on an H200, in chains of layers.
    `is_large`: the GPU has TMA, and 227 KB of shared memory for a program."""
    if is_large and matrix.format == "fp8":
        return _fp8_tiling(rows, is_gated)
    is_wide = matrix.weight.element_size() >= 2
    if is_large and matrix.weight.element_size() == 2:
        if is_gated:
            return BatchTiling(64, 128, 4, 3) if rows <= 16 else BatchTiling(64, 64, 4, 4)
        return BatchTiling(64, 128, 4, 4) if rows <= 32 else BatchTiling(128, 128, 4, 3)
    if not is_gated:
        return BatchTiling(64, 128, 4, 4 if rows <= 32 or not is_wide else 3)
    if is_wide:
        return BatchTiling(32, 128, 4, 4) if rows <= 32 else BatchTiling(64, 64, 4, 3)
    return BatchTiling(32, 256, 4, 4) if rows <= 16 else BatchTiling(64, 128, 4, 3)


def _fp8_tiling(rows: int, is_gated: bool) -> BatchTiling:
    if is_gated:
        # The next kernel is a product, too: its waiting programs would take room from running ones.
        return BatchTiling(64, 128, 4, 4, uses_tma=True, starts_next_late=rows <= 16, smallest_rows=8)
    block, stages = (256, 3) if rows <= 32 else (128, 4)
    return BatchTiling(64, block, 4, stages, uses_tma=True)


def is_large(device: torch.device) -> bool:
    """Whether a GPU has TMA, and 227 KB of shared memory for a program."""
    if kernel_capability(device) < (9, 0):
        return False
    return shared_memory_limit(device) >= LARGE_SHARED_MEMORY


_NO_PDL = {"USES_PDL": False}
"""For int8: converting its weights keeps the multiprocessors busy, and waiting programs of the next kernel
slow it down (H100, 8 and 32 sequences: a step of 5.5 and 8.1 ms with PDL, 4.4 and 6.3 ms without)."""


class BatchedLinear:
    """`capacity`: rows of every buffer; `skinny`: the kernel in CUDA C++, if it can run the
    products of all layers."""

    def __init__(self, capacity: int, device: torch.device, skinny: SkinnyGemm | None = None) -> None:
        self._capacity, self._skinny = capacity, skinny
        self._fp8_as_bits = lacks_fp8(device)
        self._pdl = pdl_launch_args(device)
        self.tiling = partial(tiling_of, is_large=is_large(device))
        """Replaced to measure other tilings."""

    @staticmethod
    def input_dtype(matrix: Matrix, dtype: torch.dtype) -> torch.dtype:
        """The dtype of the rows that are multiplied by a matrix, in a model of `dtype`. e4m3 converts to
        float16 in one instruction; rows have more precision there than in bfloat16."""
        return torch.float16 if matrix.format == "fp8" and dtype == torch.bfloat16 else dtype

    def row_format(self, matrix: Matrix, dtype: torch.dtype) -> RowFormat:
        """How the rows that are multiplied by a matrix are stored."""
        if self.input_dtype(matrix, dtype) != torch.float16:
            return RowFormat.BF16
        return RowFormat.F16 if self._skinny_of(matrix, is_gated=False) is None else RowFormat.F16_INTERLEAVED

    @property
    def scales_rows(self) -> bool:
        """Whether products multiply their sums by what the norm of their rows lacks: in CUDA C++."""
        return self._skinny is not None

    def num_splits(self, matrix: Matrix) -> int:
        """Parts that the inputs of a product without gate are split into, whatever the number of rows."""
        skinny = self._skinny_of(matrix, is_gated=False)
        return triton_splits(matrix) if skinny is None else skinny.plan(matrix).splits

    def run(
        self,
        rows: int,
        x: Tensor,
        matrix: Matrix,
        out: Tensor,
        *,
        is_split: bool = True,
        norms: RowNorms | None = None,
    ) -> None:
        """Partial sums of x @ weight^T into the flat buffer `out`; the sums themselves without `is_split`.
        `norms`: what the norm of x lacks, if `scales_rows`."""
        skinny = self._skinny_of(matrix, is_gated=False)
        if skinny is not None:
            skinny.launch(rows, x, matrix, out, is_split=is_split, norms=norms)
        elif matrix.format == "int4":
            self._int4(rows, x, matrix, out)
        else:
            self._launch(rows, x, matrix, out, is_gated=False, is_split=is_split)

    def run_gated(
        self, rows: int, x: Tensor, matrix: Matrix, out: Tensor, *, norms: RowNorms | None = None
    ) -> None:
        """gate, up = x @ weight^T; out [capacity, inner] = silu(gate) * up. `norms`: as in `run`."""
        skinny = self._skinny_of(matrix, is_gated=True)
        if skinny is not None:
            skinny.launch(rows, x, matrix, out, is_gated=True, norms=norms)
            return
        if matrix.format != "int4":
            self._launch(rows, x, matrix, out, is_gated=True, is_split=False)
            return
        width = matrix.shape[0] // 2
        both = torch.empty(self._capacity, 2 * width, device=x.device)
        self._int4(rows, x, matrix, both)
        block = min(1024, triton.next_power_of_2(width))
        gate_rows[(rows, triton.cdiv(width, block))](both, out, WIDTH=width, BLOCK=block)

    def _launch(
        self, rows: int, x: Tensor, matrix: Matrix, out: Tensor, *, is_gated: bool, is_split: bool
    ) -> None:
        tiling = self.tiling(rows, matrix, is_gated=is_gated)
        num_outputs = matrix.shape[0] // 2 if is_gated else matrix.shape[0]
        splits = triton_splits(matrix) if is_split else 1
        as_bits = self._fp8_as_bits and matrix.weight.dtype == FP8
        weight = matrix.weight.view(torch.uint8) if as_bits else matrix.weight
        tile_rows = max(tiling.smallest_rows, rows)
        uses_tma = tiling.uses_tma and matrix.shape[1] % _TMA_COLUMNS == 0
        # A pointer disabled by a flag is never read; any tensor serves as a placeholder.
        x_tiles: Tensor | TensorDescriptor = x
        weight_tiles: Tensor | TensorDescriptor = weight
        if uses_tma:
            x_tiles = TensorDescriptor.from_tensor(x, [tile_rows, tiling.block])
            weight_tiles = TensorDescriptor.from_tensor(weight, [tiling.outputs, tiling.block])
        pdl = _NO_PDL if matrix.format == "int8" else self._pdl
        prefetches = pdl["USES_PDL"] and matrix.shape[1] % tiling.block == 0
        batch_linear[(triton.cdiv(num_outputs, tiling.outputs), splits)](
            x,
            weight,
            x_tiles,
            weight_tiles,
            x if matrix.scale is None else matrix.scale,
            out,
            CAPACITY=self._capacity,
            OUT=num_outputs,
            COLUMNS=matrix.shape[1],
            SPLITS=splits,
            IS_GATED=is_gated,
            HAS_SCALE=matrix.scale is not None,
            FP8_BITS=as_bits,
            USES_TMA=uses_tma,
            ROWS=tile_rows,
            OUTPUTS=tiling.outputs,
            BLOCK=tiling.block,
            PREFETCH=tiling.prefetch_bytes // weight.element_size() if prefetches else 0,
            STARTS_NEXT_LATE=tiling.starts_next_late,
            num_warps=tiling.warps,
            num_stages=tiling.stages,
            **pdl,
        )

    def _skinny_of(self, matrix: Matrix, *, is_gated: bool) -> SkinnyGemm | None:
        return self._skinny if self._skinny is not None and can_multiply(matrix, is_gated=is_gated) else None

    def _int4(self, rows: int, x: Tensor, matrix: Matrix, out: Tensor) -> None:
        num_outputs, width = matrix.shape
        flags: dict[str, Any] = {"num_warps": 4, "num_stages": 4}
        small_batch_linear_int4[(triton.cdiv(num_outputs, 32),)](
            x,
            matrix.weight,
            matrix.scale,
            x,
            out,
            rows,
            OUT=num_outputs,
            COLUMNS=width,
            NUM_GROUPS=-(-width // GROUP),
            HAS_RESIDUAL=False,
            ROWS=max(SMALLEST_TILE, rows),
            OUTPUTS=32,
            **flags,
        )
