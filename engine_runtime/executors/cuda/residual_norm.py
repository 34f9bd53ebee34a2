"""The residual and the norm between two products of a decode step of several sequences as a kernel in CUDA
C++ (cuda/kernels/residual_norm), on GPUs of compute capability 9.0 or later.

In: rows of the residual stream in bf16, partial sums of a product, the weights of a norm. Out: the new rows
of the residual stream, and their norm in the dtype of the next product, whole or but for a factor. The
reference implementation is `add_and_norm` of kernels/batched_linear.py in Triton. Engine thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine_runtime.cuda.compiled_kernel import CompiledKernel, kernel_files, layout_header
from engine_runtime.cuda.gpu_memory import BATCH_SPLITS
from engine_runtime.executors.cuda.skinny_gemm import PARTS_READ, RowFormat, RowNorms
from engine_runtime.hardware import kernel_capability
from engine_runtime.models.moss_lm import MossLMConfig

_THREAD_COLUMNS = 8
_PART_COLUMNS = 256
"""Columns of a warp that adds without the norm."""
_PART_WARPS = 4
_WARP = 32
_MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class NormLayout:
    """Sizes for which the kernel is compiled."""

    width: int
    eps: float
    capacity: int

    @property
    def num_threads(self) -> int:
        """Threads of a block."""
        return self.width // _THREAD_COLUMNS

    def header(self) -> str:
        """Text of layout.cuh."""
        constants: dict[str, int | str] = {
            "WIDTH": self.width,
            "CAPACITY": self.capacity,
            "MAX_SPLITS": BATCH_SPLITS,
            "EPS": f"{self.eps!r}f",
            "PART_COLUMNS": _PART_COLUMNS,
            "PART_WARPS": _PART_WARPS,
        }
        return layout_header(constants)


def unsupported_reason(device: torch.device, config: MossLMConfig, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot run in a model of `dtype`; None if it can."""
    if kernel_capability(device) < (9, 0):
        return "it needs a GPU of compute capability 9.0 or later"
    if dtype != torch.bfloat16:
        return "it needs bfloat16"
    tile = _THREAD_COLUMNS * _WARP
    if config.hidden_size % tile or config.hidden_size > _THREAD_COLUMNS * _MAX_THREADS:
        return f"it needs rows of a multiple of {tile}, at most {_THREAD_COLUMNS * _MAX_THREADS}"
    return None


def kernel_source(layout: NormLayout, name: str = "add.cu") -> tuple[str, dict[str, str]]:
    """CUDA C++ source of a kernel, and the headers that it includes, by name."""
    source, headers = kernel_files("residual_norm", name)
    return source, headers | {"layout.cuh": layout.header()}


class ResidualNorm:
    """`capacity`: rows of every buffer. Raises RuntimeError, ImportError or OSError if the
    kernel cannot be compiled."""

    def __init__(self, config: MossLMConfig, capacity: int, device: torch.device) -> None:
        self._layout = NormLayout(config.hidden_size, config.rms_norm_eps, capacity)
        source, headers = kernel_source(self._layout)
        self._kernel = CompiledKernel(source, headers, "add_and_norm", 0, device)
        source, headers = kernel_source(self._layout, "add_scaled.cu")
        self._scaled = CompiledKernel(source, headers, "add_scaled", 0, device)

    def launch(
        self,
        rows: int,
        source: Tensor,
        sums: Tensor | None,
        splits: int,
        *,
        index: Tensor | None = None,
        target: Tensor | None = None,
        kept: Tensor | None = None,
        kept_row: Tensor | None = None,
        norm: Tensor | None = None,
        out: Tensor | None = None,
        row_format: RowFormat = RowFormat.BF16,
        applied: Tensor | None = None,
    ) -> None:
        """x = source + the sums of a product [splits, capacity, width], for the first `rows` rows, or for the
        rows `index` of both. x goes to `target` and to rows `kept_row` of `kept` (negative: not), its norm to
        `out`; `applied`: the factor by which the norm multiplies each row. [capacity] float32"""
        self._kernel.launch(
            rows,
            self._layout.num_threads,
            [
                source,
                index,
                sums,
                splits,
                target,
                kept,
                kept_row,
                norm,
                out,
                row_format,
                applied,
            ],
            starts_early=True,
        )

    @property
    def num_parts(self) -> int:
        """Sums of squares of a row that `launch_scaled` stores; 0: it cannot run."""
        width = self._layout.width
        return 0 if width % (PARTS_READ * _PART_COLUMNS) else width // _PART_COLUMNS

    def launch_scaled(
        self,
        rows: int,
        x: Tensor,
        sums: Tensor,
        splits: int,
        *,
        norm: Tensor,
        out: Tensor,
        row_format: RowFormat,
        norms: RowNorms,
    ) -> None:
        """x += the sums of a product, for the first `rows` rows. Their norm, which lacks `norms`, goes to
        `out`, and the sums of squares to `norms.squares`."""
        self._scaled.launch(
            -(-rows * self.num_parts // _PART_WARPS),
            _WARP * _PART_WARPS,
            [x, sums, splits, norm, out, row_format, norms.applied, norms.squares, rows],
            starts_early=True,
        )
