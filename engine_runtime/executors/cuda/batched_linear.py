"""A few rows times a weight in any format, by the Triton kernels of cuda/kernels/batched_linear.py.

In: rows [capacity, in], a Matrix. Out: float32 partial sums [num_splits(matrix), capacity, out] in the
caller's flat buffer, or for gate and up rows [capacity, inner]. Imported only if Triton is available. Engine
thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from engine_runtime.cuda.gpu_memory import BATCH_SPLITS
from engine_runtime.cuda.kernels.batched_linear import batch_linear
from engine_runtime.cuda.kernels.pdl import pdl_launch_args
from engine_runtime.cuda.kernels.prefill_elementwise import gate_rows
from engine_runtime.cuda.kernels.small_batch_linear import small_batch_linear_int4
from engine_runtime.executors.cuda.triton_linear import lacks_fp8
from engine_runtime.quantization import FP8, GROUP, Matrix

SMALLEST_TILE = 16
"""Rows of a matrix instruction: fewer take as long."""
_OUTPUTS = 64
"""Outputs per program that `num_splits` assumes."""
_MIN_PROGRAMS = 96
"""Three quarters of the multiprocessors of a large GPU."""
_MIN_COLUMNS = 512
"""A split reads at least this many inputs."""


@dataclass(frozen=True, slots=True)
class BatchTiling:
    """Outputs per program, inputs per tile, warps, pipeline stages, and the bytes of each weight row that are
    requested while the kernel before still runs."""

    outputs: int
    block: int
    warps: int
    stages: int
    prefetch_bytes: int


def num_splits(matrix: Matrix) -> int:
    """Parts that the inputs of a product are split into: enough programs for every multiprocessor of a large
    GPU. Independent of the number of rows, so that an output is always summed in the same order."""
    tiles, splits = -(-matrix.shape[0] // _OUTPUTS), 1
    if matrix.format == "int4" or tiles >= _MIN_PROGRAMS:
        return 1
    while (
        tiles * splits < 2 * _MIN_PROGRAMS
        and splits < BATCH_SPLITS
        and matrix.shape[1] % (2 * splits * _MIN_COLUMNS) == 0
    ):
        splits *= 2
    return splits


def tiling_of(rows: int, matrix: Matrix, *, is_gated: bool) -> BatchTiling:
    """The tiling of a product of `rows` rows: the fastest ones measured on an H200."""
    is_wide = matrix.weight.element_size() >= 2
    if not is_gated:
        return BatchTiling(64, 128, 4, 4 if rows <= 32 or not is_wide else 3, 512)
    if is_wide:
        return BatchTiling(32, 128, 4, 4, 512) if rows <= 32 else BatchTiling(64, 64, 4, 3, 512)
    return BatchTiling(32, 256, 4, 4, 512) if rows <= 16 else BatchTiling(64, 128, 4, 3, 512)


class BatchedLinear:
    """See the module. `capacity`: rows of every buffer."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._capacity = capacity
        self._fp8_as_bits = lacks_fp8(device)
        self._pdl = pdl_launch_args(device)
        self.tiling = tiling_of
        """Replaced to measure other tilings."""

    @staticmethod
    def input_dtype(matrix: Matrix, dtype: torch.dtype) -> torch.dtype:
        """The dtype of the rows that are multiplied by a matrix, in a model of `dtype`. e4m3 converts to
        float16 in one instruction; rows have more precision there than in bfloat16."""
        return torch.float16 if matrix.format == "fp8" and dtype == torch.bfloat16 else dtype

    def run(self, rows: int, x: Tensor, matrix: Matrix, out: Tensor) -> None:
        """Partial sums of x @ weight^T into the flat buffer `out`."""
        if matrix.format == "int4":
            self._int4(rows, x, matrix, out)
        else:
            self._launch(rows, x, matrix, out, is_gated=False)

    def run_gated(self, rows: int, x: Tensor, matrix: Matrix, out: Tensor) -> None:
        """gate, up = x @ weight^T; out [capacity, inner] = silu(gate) * up."""
        if matrix.format != "int4":
            self._launch(rows, x, matrix, out, is_gated=True)
            return
        width = matrix.shape[0] // 2
        both = torch.empty(self._capacity, 2 * width, device=x.device)
        self._int4(rows, x, matrix, both)
        block = min(1024, triton.next_power_of_2(width))
        gate_rows[(rows, triton.cdiv(width, block))](both, out, WIDTH=width, BLOCK=block)

    def _launch(self, rows: int, x: Tensor, matrix: Matrix, out: Tensor, *, is_gated: bool) -> None:
        tiling = self.tiling(rows, matrix, is_gated=is_gated)
        num_outputs = matrix.shape[0] // 2 if is_gated else matrix.shape[0]
        splits = 1 if is_gated else num_splits(matrix)
        as_bits = self._fp8_as_bits and matrix.weight.dtype == FP8
        uses_pdl = self._pdl["USES_PDL"]
        prefetch = tiling.prefetch_bytes // matrix.weight.element_size() if uses_pdl else 0
        batch_linear[(triton.cdiv(num_outputs, tiling.outputs), splits)](
            x,
            matrix.weight.view(torch.uint8) if as_bits else matrix.weight,
            # A pointer disabled by a flag is never read; any tensor serves as a placeholder.
            x if matrix.scale is None else matrix.scale,
            out,
            CAPACITY=self._capacity,
            OUT=num_outputs,
            COLUMNS=matrix.shape[1],
            SPLITS=splits,
            IS_GATED=is_gated,
            HAS_SCALE=matrix.scale is not None,
            FP8_BITS=as_bits,
            ROWS=max(SMALLEST_TILE, rows),
            OUTPUTS=tiling.outputs,
            BLOCK=tiling.block,
            PREFETCH=min(prefetch, matrix.shape[1] // splits) if matrix.shape[1] % 128 == 0 else 0,
            num_warps=tiling.warps,
            num_stages=tiling.stages,
            **self._pdl,
        )

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
