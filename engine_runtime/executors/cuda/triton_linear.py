"""One row times a weight in any format, by the Triton kernels of cuda/kernels/linear.py, and their tilings.

In: a row, a Matrix. Out: a row, in the caller's buffer. Imported only if Triton is available. Engine thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from engine_runtime.cuda.kernels.linear import row_linear, row_linear_int4, row_linear_int8
from engine_runtime.hardware import kernel_capability
from engine_runtime.quantization import FP8, GROUP, Matrix


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """Tiling of a row times a matrix.

    Attributes:
        rows: output rows that a program computes at a time.
        warps: warps per program.
        ctas_per_sm: programs per multiprocessor.
        stages: pipeline stages: tiles of `rows` rows in flight or in use.
    """

    rows: int
    warps: int
    ctas_per_sm: int
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


def default_config(key: ConfigKey) -> KernelConfig:
    """Tiles of about 16 KiB, three stages, two programs per multiprocessor: saturates memory bandwidth."""
    return KernelConfig(rows_of(key, 16384), 4, 2, 3)


def rows_of(key: ConfigKey, tile_bytes: int) -> int:
    """Number of output rows, a power of two, whose weights occupy about `tile_bytes`."""
    wanted = max(1, tile_bytes // key.row_bytes)
    return int(min(16, triton.next_power_of_2(wanted + 1) // 2))


class TritonLinear:
    """Linear operations of one row by Triton kernels.

    Args:
        eps: of the RMS norm.
        kernel_configs: autotuned tilings (executors/cuda/autotune.py); default_config for missing keys.
    """

    def __init__(
        self, eps: float, device: torch.device, kernel_configs: dict[ConfigKey, KernelConfig] | None = None
    ) -> None:
        self.kernel_configs = {} if kernel_configs is None else kernel_configs
        self._eps = eps
        self._fp8_as_bits = lacks_fp8(device)
        self._is_gpu = device.type == "cuda"
        self._num_sms = 1
        if self._is_gpu:
            self._num_sms = torch.cuda.get_device_properties(device).multi_processor_count

    def run(
        self,
        x: Tensor,
        norm: Tensor | None,
        matrix: Matrix,
        residual: Tensor | None,
        out: Tensor,
        *,
        is_gated: bool = False,
    ) -> None:
        """out = rms_norm(x) * norm @ matrix^T + residual, without norm or residual if it is None.

        `is_gated`: gate, up = the product; out = silu(gate) * up.
        """
        key = ConfigKey(matrix.format, matrix.shape, is_gated)
        tiling = self.kernel_configs.get(key) or default_config(key)
        num_rows = matrix.shape[0] // 2 if is_gated else matrix.shape[0]
        columns = matrix.shape[1]
        flags = {
            "COLUMNS": columns,
            "WIDTH": triton.next_power_of_2(columns),
            "HAS_NORM": norm is not None,
            "IS_GATED": is_gated,
            "HAS_RESIDUAL": residual is not None,
            "ROWS": tiling.rows,
            "STAGES": tiling.stages,
            "num_warps": tiling.warps,
        }
        # Pointers disabled by a flag are never read; any tensor serves as a placeholder.
        norm = x if norm is None else norm
        residual = x if residual is None else residual
        scale = x if matrix.scale is None else matrix.scale
        grid = (min(triton.cdiv(num_rows, tiling.rows), tiling.ctas_per_sm * self._num_sms),)
        weight = matrix.weight
        if matrix.format == "int4":
            groups = -(-columns // GROUP)
            flags |= {"NUM_GROUPS": groups, "WIDTH": triton.next_power_of_2(groups * GROUP)}
            row_linear_int4[grid](
                x, norm, weight.view(torch.int32), scale, residual, out, num_rows, self._eps,
                HAS_ASM=self._is_gpu, **flags,
            )  # fmt: skip
            return
        if matrix.format == "int8" and columns % 4 == 0:
            row_linear_int8[grid](
                x, norm, weight.view(torch.int32), scale, residual, out, num_rows, self._eps,
                HAS_ASM=self._is_gpu, **flags,
            )  # fmt: skip
            return
        as_bits = self._fp8_as_bits and weight.dtype == FP8
        row_linear[grid](
            x, norm, weight.view(torch.uint8) if as_bits else weight, scale, residual, out, num_rows,
            self._eps, HAS_SCALE=matrix.scale is not None, FP8_BITS=as_bits, **flags,
        )  # fmt: skip


def lacks_fp8(device: torch.device) -> bool:
    """Whether Triton lacks e4m3 on this GPU, so that the kernels decode its bits instead."""
    return (0, 0) < kernel_capability(device) < (8, 9)
