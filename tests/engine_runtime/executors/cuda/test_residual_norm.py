"""Residuals and norms of several sequences without a GPU: the kernel compiles; refusals and arguments."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from engine_runtime.cuda.gpu_memory import BATCH_SPLITS
from engine_runtime.cuda.nvrtc import compile_program
from engine_runtime.executors.cuda import residual_norm, skinny_gemm
from engine_runtime.executors.cuda.residual_norm import (
    NormLayout,
    ResidualNorm,
    kernel_source,
    unsupported_reason,
)
from engine_runtime.executors.cuda.skinny_gemm import GemmLayout, RowFormat, RowNorms
from tests.doubles.compiled_kernel import RecordedKernel
from tests.factories.tiny_lm import RELEASED

CAPACITY = 64


@pytest.mark.slow
@pytest.mark.parametrize("width", [256, 4096, 8192])
@pytest.mark.parametrize("name", ["add_and_norm", "add_scaled"])
def test_it_compiles_into_registers(name: str, width: int) -> None:
    file = "add.cu" if name == "add_and_norm" else "add_scaled.cu"
    source, headers = kernel_source(NormLayout(width, 1e-6, CAPACITY), file)
    try:
        program, log = compile_program(source, "sm_90", "--ptxas-options=-v", headers=headers)
    except OSError as error:
        pytest.skip(str(error))
    assert name.encode() in program
    assert " 0 bytes spill stores, 0 bytes spill loads" in log


@pytest.mark.slow
def test_a_block_starts_beside_one_of_a_product() -> None:
    """Without enough registers it would start when that one has ended."""

    def registers(source: str, headers: dict[str, str], threads: int) -> int:
        log = compile_program(source, "sm_90a", "--ptxas-options=-v", headers=headers)[1]
        used = re.search(r"Used (\d+) registers", log)
        assert used is not None
        return -(-int(used[1]) // 8) * 8 * threads  # allocated eight at a time

    product = GemmLayout(64, 2, 4, is_gated=False, is_fp8=True, capacity=CAPACITY, eps=1e-6)
    try:
        of_product = registers(*skinny_gemm.kernel_source(product), product.num_threads)
        of_sum = registers(*kernel_source(NormLayout(4096, 1e-6, CAPACITY), "add_scaled.cu"), 128)
    except OSError as error:
        pytest.skip(str(error))
    assert of_product + of_sum <= 65536


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
    out, kept, kept_row = torch.zeros(3, 1)
    operation.launch(
        5, x, sums, 4, target=x, kept_row=kept_row, norm=norm, out=out, row_format=RowFormat.F16_INTERLEAVED
    )
    assert (kernel.blocks, kernel.threads) == (5, 512)
    operation.launch(2, x, None, 0, index=kept_row, kept=kept, kept_row=kept_row)
    first, second = kernel.launches
    assert (first["source"], first["partial"], first["target"]) == (x, sums, x)
    assert (first["splits"], first["row_format"], first["index"], first["kept"]) == (4, 2, None, None)
    assert (first["norm"], first["out"]) == (norm, out)
    assert (second["splits"], second["row_format"], second["index"]) == (0, 0, kept_row)
    assert (second["partial"], second["norm"], second["out"]) == (None, None, None)
    assert (second["kept"], second["kept_row"]) == (kept, kept_row)


@pytest.mark.parametrize(("width", "parts"), [(4096, 16), (1024, 4), (8192, 32), (1280, 0), (256, 0)])
def test_parts_whose_squares_a_product_can_read(
    width: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residual_norm, "CompiledKernel", RecordedKernel)
    config = replace(RELEASED, hidden_size=width)
    assert ResidualNorm(config, CAPACITY, torch.device("cuda")).num_parts == parts


@pytest.mark.parametrize(("rows", "blocks"), [(1, 4), (7, 28), (64, 256)])
def test_norms_that_lack_a_factor(rows: int, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residual_norm, "CompiledKernel", RecordedKernel)
    operation = ResidualNorm(RELEASED, CAPACITY, torch.device("cuda"))
    x, sums, norm, out = torch.zeros(4, 1)
    norms = RowNorms(torch.zeros(CAPACITY, 16), *torch.zeros(2, CAPACITY))
    operation.launch_scaled(
        rows, x, sums, 3, norm=norm, out=out, row_format=RowFormat.F16_INTERLEAVED, norms=norms
    )
    kernel = operation._scaled
    assert isinstance(kernel, RecordedKernel)
    assert (kernel.blocks, kernel.threads) == (blocks, 128)
    assert [kernel.number(name) for name in ("splits", "row_format", "rows")] == [3, 2, rows]
    given = [kernel.arguments[name] for name in ("x", "partial", "norm", "out", "applied", "squares")]
    wanted = [x, sums, norm, out, norms.applied, norms.squares]
    assert all(its is tensor for its, tensor in zip(given, wanted, strict=True))
