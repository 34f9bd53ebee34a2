"""Residuals and norms of several sequences in CUDA C++ on a real GPU, against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine_runtime.cuda.gpu_memory import BATCH_SPLITS
from engine_runtime.executors.cuda.residual_norm import ResidualNorm, unsupported_reason
from engine_runtime.executors.cuda.skinny_gemm import RowFormat, RowNorms
from tests.factories.tiny_lm import RELEASED
from tests.tools.interleaved_rows import in_order

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
DEVICE = torch.device("cuda")
CAPACITY, WIDTH = 64, RELEASED.hidden_size


@pytest.fixture(scope="module")
def operation() -> ResidualNorm:
    reason = unsupported_reason(DEVICE, RELEASED, torch.bfloat16)
    if reason is not None:
        pytest.skip(reason)
    torch.manual_seed(0)
    return ResidualNorm(RELEASED, CAPACITY, DEVICE)


def random_rows(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, WIDTH, device=DEVICE).to(dtype)


def poisoned(dtype: torch.dtype = torch.bfloat16, rows: int = CAPACITY) -> Tensor:
    return torch.full((rows, WIDTH), torch.nan, device=DEVICE, dtype=dtype)


@pytest.mark.parametrize("row_format", [RowFormat.BF16, RowFormat.F16])
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize("splits", range(BATCH_SPLITS + 1))
@torch.inference_mode()
def test_rows_and_their_norm(splits: int, rows: int, row_format: RowFormat, operation: ResidualNorm) -> None:
    dtype = torch.bfloat16 if row_format == RowFormat.BF16 else torch.float16
    source, sums = random_rows(CAPACITY), random_rows(max(1, splits), CAPACITY, dtype=torch.float32)
    norm, target, out = random_rows(), poisoned(), poisoned(dtype)
    operation.launch(rows, source, sums, splits, target=target, norm=norm, out=out, row_format=row_format)
    torch.cuda.synchronize()
    x = source.float()
    for split in range(splits):
        x = x + sums[split]
    assert torch.equal(target[:rows], x.bfloat16()[:rows])
    stored = target[:rows].double()
    wanted = stored * (stored.square().mean(1, keepdim=True) + RELEASED.rms_norm_eps).rsqrt() * norm.double()
    error = (out[:rows].double() - wanted).norm() / wanted.norm()
    assert float(error) < (3e-3 if dtype == torch.bfloat16 else 4e-4)
    assert bool(target[rows:].isnan().all())
    assert bool(out[rows:].isnan().all())


@torch.inference_mode()
def test_interleaved_rows_hold_the_same_numbers(operation: ResidualNorm) -> None:
    source, sums, norm = random_rows(CAPACITY), random_rows(2, CAPACITY, dtype=torch.float32), random_rows()
    outs = {}
    for row_format in (RowFormat.F16, RowFormat.F16_INTERLEAVED):
        outs[row_format] = poisoned(torch.float16)
        operation.launch(7, source, sums, 2, norm=norm, out=outs[row_format], row_format=row_format)
    torch.cuda.synchronize()
    plain, stored = outs.values()
    assert bool(plain[:7].isfinite().all())
    assert torch.equal(in_order(stored)[:7], plain[:7])
    assert bool(stored[7:].isnan().all())


@torch.inference_mode()
def test_rows_in_place_and_rows_that_are_kept(operation: ResidualNorm) -> None:
    x, sums = random_rows(CAPACITY), random_rows(2, CAPACITY, dtype=torch.float32)
    wanted = (x.float() + sums[0] + sums[1]).bfloat16()
    kept, kept_row = poisoned(rows=100), torch.full((CAPACITY,), -1, device=DEVICE)
    kept_row[3], kept_row[9] = 80, 5
    operation.launch(16, x, sums, 2, target=x, kept=kept, kept_row=kept_row)
    torch.cuda.synchronize()
    assert torch.equal(x[:16], wanted[:16])
    assert torch.equal(kept[[80, 5]], wanted[[3, 9]])
    assert int(kept.isnan().all(1).sum()) == 98


@torch.inference_mode()
def test_rows_by_their_index(operation: ResidualNorm) -> None:
    """Of an embedding table, and of the last rows with their sums."""
    table, index = random_rows(1000), torch.tensor([999, 0, 5, 5], device=DEVICE)
    norm, target, out = random_rows(), poisoned(), poisoned()
    operation.launch(4, table, None, 0, index=index, target=target, norm=norm, out=out)
    x, sums, last = random_rows(CAPACITY), random_rows(1, CAPACITY, dtype=torch.float32), poisoned()
    at = torch.tensor([63, 2], device=DEVICE)
    operation.launch(2, x, sums, 1, index=at, norm=norm, out=last)
    torch.cuda.synchronize()
    assert torch.equal(target[:4], table[index])
    assert torch.equal(out[2], out[3])
    stored = (x.float() + sums[0]).bfloat16()[at].double()
    wanted = stored * (stored.square().mean(1, keepdim=True) + RELEASED.rms_norm_eps).rsqrt() * norm.double()
    assert float((last[:2].double() - wanted).norm() / wanted.norm()) < 3e-3


@pytest.mark.parametrize("row_format", list(RowFormat))
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize("splits", range(1, BATCH_SPLITS + 1))
@torch.inference_mode()
def test_norms_that_lack_a_factor(
    splits: int, rows: int, row_format: RowFormat, operation: ResidualNorm
) -> None:
    dtype = torch.bfloat16 if row_format == RowFormat.BF16 else torch.float16
    before, sums = random_rows(CAPACITY), random_rows(splits, CAPACITY, dtype=torch.float32)
    x, norm, out = before.clone(), random_rows(), poisoned(dtype)
    norms = RowNorms(
        torch.full((CAPACITY, operation.num_parts), torch.nan, device=DEVICE),
        torch.rand(CAPACITY, device=DEVICE) + 0.5,
        torch.zeros(CAPACITY, device=DEVICE),
    )
    operation.launch_scaled(rows, x, sums, splits, norm=norm, out=out, row_format=row_format, norms=norms)
    torch.cuda.synchronize()
    wanted = before.float()
    for split in range(splits):
        wanted = wanted + sums[split]
    assert torch.equal(x[:rows], wanted.bfloat16()[:rows])
    assert torch.equal(x[rows:], before[rows:])
    squares = x[:rows].double().view(rows, operation.num_parts, -1).square().sum(2)
    assert float((norms.squares[:rows].double() / squares - 1).abs().max()) < 1e-5
    found = in_order(out) if row_format == RowFormat.F16_INTERLEAVED else out
    lacking = x.double() * norm.double() * norms.applied.double()[:, None]
    error = (found.double() - lacking)[:rows].norm() / lacking[:rows].norm()
    assert float(error) < (3e-3 if dtype == torch.bfloat16 else 4e-4)
    assert bool(out[rows:].isnan().all())
    assert bool(norms.squares[rows:].isnan().all())
