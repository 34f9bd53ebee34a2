"""Measured ceilings of the machine: memory bandwidth and matrix multiplication rate.

In: a device. Out: bytes per second (reads plus writes) and floating-point operations per second, the ceilings
to compare the times of a model with. The results of both operations are verified. Runs in the thread of its
caller.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch

from engine_runtime.bench.measuring import BenchError
from engine_runtime.cuda.gpu_memory import memory_of
from engine_runtime.cuda.stopwatch import times_ms
from engine_runtime.table import Section

GPU_COPY_BYTES, CPU_COPY_BYTES = 2_000_000_000, 128_000_000
GPU_MATRIX, CPU_MATRIX = 8192, 1024


@dataclass(frozen=True, slots=True)
class Ceilings:
    """`matrix_dtype` is the dtype of the operands; products accumulate in float32."""

    copy_bytes_per_s: float
    matrix_flops_per_s: float
    copy_bytes: int
    matrix_size: int
    matrix_dtype: str

    def section(self) -> Section:
        """As a table."""
        columns = {
            "ceiling": "measured on this machine before the benchmark, medians",
            "rate": "GB/s of a copy in device memory, read + written; TFLOP/s of a square product",
            "size": "bytes copied, or rows and columns of the matrices",
            "dtype": "of the matrices",
        }
        return Section(
            "ceilings",
            columns,
            [
                {"ceiling": "copy GB/s", "rate": self.copy_bytes_per_s / 1e9, "size": self.copy_bytes},
                {
                    "ceiling": "matrix TFLOP/s",
                    "rate": self.matrix_flops_per_s / 1e12,
                    "size": self.matrix_size,
                    "dtype": self.matrix_dtype,
                },
            ],
        )


def measure_ceilings(device: torch.device, repeats: int = 20) -> Ceilings:
    """Measure both. Raises BenchError if a result is wrong."""
    is_gpu = device.type == "cuda"
    size = GPU_COPY_BYTES if is_gpu else CPU_COPY_BYTES
    if is_gpu:  # source and target take at most a quarter of the free memory each
        size = min(size, memory_of(device)[0] // 32 * 8)
    matrix, dtype = (GPU_MATRIX, torch.bfloat16) if is_gpu else (CPU_MATRIX, torch.float32)
    ceilings = Ceilings(
        copy_bytes_per_s=2 * size / _copy_s(device, size, repeats),
        matrix_flops_per_s=2 * matrix**3 / _product_s(device, matrix, dtype, repeats),
        copy_bytes=size,
        matrix_size=matrix,
        matrix_dtype=str(dtype).removeprefix("torch."),
    )
    if is_gpu:
        torch.cuda.empty_cache()  # the next engine is sized by the free memory
    return ceilings


def _copy_s(device: torch.device, size: int, repeats: int) -> float:
    source = torch.arange(size // 8, dtype=torch.int64, device=device)
    target = torch.zeros_like(source)
    seconds = statistics.median(times_ms(lambda: target.copy_(source), device, repeats, warm_up=3)) / 1000
    if not torch.equal(source, target):
        raise BenchError("A copy in device memory was wrong.", "No times are reported; check the machine.")
    return seconds


def _product_s(device: torch.device, size: int, dtype: torch.dtype, repeats: int) -> float:
    generator = torch.Generator(device).manual_seed(0)
    left, right = (
        torch.randn((size, size), generator=generator, device=device, dtype=torch.float32).to(dtype)
        for _ in range(2)
    )
    out = torch.zeros_like(left)  # not torch.empty: it may return the memory of an earlier product
    times = times_ms(lambda: torch.mm(left, right, out=out), device, repeats, warm_up=3)
    wanted = left[0].double() @ right.double()
    error = float((out[0].double() - wanted).abs().max() / wanted.abs().max())
    if not error < 0.02:
        raise BenchError("A matrix product was wrong.", "No times are reported; check the machine.")
    return statistics.median(times) / 1000
