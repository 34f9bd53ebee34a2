"""Residuals and norms of several sequences without a GPU: the kernel compiles; refusals and arguments."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine_runtime.cuda.gpu_memory import BATCH_SPLITS
from engine_runtime.cuda.nvrtc import compile_program
from engine_runtime.executors.cuda import residual_norm
from engine_runtime.executors.cuda.residual_norm import (
    NormLayout,
    ResidualNorm,
    kernel_source,
    unsupported_reason,
)
from tests.doubles.compiled_kernel import RecordedKernel
from tests.factories.tiny_lm import RELEASED

CAPACITY = 64


@pytest.mark.slow
@pytest.mark.parametrize("width", [256, 4096, 8192])
def test_it_compiles_into_registers(width: int) -> None:
    source, headers = kernel_source(NormLayout(width, 1e-6, CAPACITY))
    try:
        program, log = compile_program(source, "sm_90", "--ptxas-options=-v", headers=headers)
    except OSError as error:
        pytest.skip(str(error))
    assert b"add_and_norm" in program
    assert " 0 bytes spill stores, 0 bytes spill loads" in log


@pytest.mark.parametrize(
    ("where", "capability", "dtype", "width", "reason"),
    [
        ("cuda", (9, 0), torch.bfloat16, 4096, None),
        ("cuda", (12, 0), torch.bfloat16, 1024, None),
        ("cpu", (9, 0), torch.bfloat16, 4096, "compute capability 9.0"),
        ("cuda", (8, 9), torch.bfloat16, 4096, "compute capability 9.0"),
        ("cuda", (9, 0), torch.float32, 4096, "bfloat16"),
        ("cuda", (9, 0), torch.bfloat16, 4096 + 128, "multiple of 256"),
        ("cuda", (9, 0), torch.bfloat16, 16384, "at most 8192"),
    ],
)
def test_where_it_cannot_run(
    where: str,
    capability: tuple[int, int],
    dtype: torch.dtype,
    width: int,
    reason: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    found = unsupported_reason(torch.device(where), replace(RELEASED, hidden_size=width), dtype)
    assert found is None if reason is None else reason in str(found)


def test_the_kernel_gets_what_it_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residual_norm, "CompiledKernel", RecordedKernel)
    operation = ResidualNorm(RELEASED, CAPACITY, torch.device("cuda"))
    kernel = operation._kernel
    assert isinstance(kernel, RecordedKernel)
    assert (kernel.constants["WIDTH"], kernel.constants["MAX_SPLITS"]) == (4096, BATCH_SPLITS)
    x, sums, norm = torch.zeros(3, 1)
    out, kept, kept_row = torch.zeros(1, dtype=torch.float16), torch.zeros(1), torch.zeros(1)
    operation.launch(5, x, sums, 4, index=None, target=x, kept=None, kept_row=kept_row, norm=norm, out=out)
    assert (kernel.blocks, kernel.threads) == (5, 512)
    operation.launch(
        2, x, None, 0, index=kept_row, target=None, kept=kept, kept_row=kept_row, norm=None, out=None
    )
    first, second = kernel.launches
    assert (first["source"], first["partial"], first["target"]) == (x, sums, x)
    assert (first["splits"], first["is_f16"], first["index"], first["kept"]) == (4, 1, None, None)
    assert (first["norm"], first["out"]) == (norm, out)
    assert (second["splits"], second["is_f16"], second["index"]) == (0, 0, kept_row)
    assert (second["partial"], second["norm"], second["out"]) == (None, None, None)
    assert (second["kept"], second["kept_row"]) == (kept, kept_row)
