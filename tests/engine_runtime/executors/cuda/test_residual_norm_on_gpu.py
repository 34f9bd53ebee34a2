"""Residuals and norms of several sequences in CUDA C++ on a real GPU, against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine_runtime.cuda.gpu_memory import BATCH_SPLITS
from engine_runtime.executors.cuda.residual_norm import ResidualNorm, unsupported_reason
from tests.factories.tiny_lm import RELEASED

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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize("splits", range(BATCH_SPLITS + 1))
@torch.inference_mode()
def test_rows_and_their_norm(splits: int, rows: int, dtype: torch.dtype, operation: ResidualNorm) -> None:
    source, sums = random_rows(CAPACITY), random_rows(max(1, splits), CAPACITY, dtype=torch.float32)
    norm, target, out = random_rows(), poisoned(), poisoned(dtype)
    operation.launch(
        rows, source, sums, splits, index=None, target=target, kept=None, kept_row=None, norm=norm, out=out
    )
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
def test_rows_in_place_and_rows_that_are_kept(operation: ResidualNorm) -> None:
    x, sums = random_rows(CAPACITY), random_rows(2, CAPACITY, dtype=torch.float32)
    wanted = (x.float() + sums[0] + sums[1]).bfloat16()
    kept, kept_row = poisoned(rows=100), torch.full((CAPACITY,), -1, device=DEVICE)
    kept_row[3], kept_row[9] = 80, 5
    operation.launch(16, x, sums, 2, index=None, target=x, kept=kept, kept_row=kept_row, norm=None, out=None)
    torch.cuda.synchronize()
    assert torch.equal(x[:16], wanted[:16])
    assert torch.equal(kept[[80, 5]], wanted[[3, 9]])
    assert int(kept.isnan().all(1).sum()) == 98


@torch.inference_mode()
def test_rows_by_their_index(operation: ResidualNorm) -> None:
    """Of an embedding table, and of the last rows with their sums."""
    table, index = random_rows(1000), torch.tensor([999, 0, 5, 5], device=DEVICE)
    norm, target, out = random_rows(), poisoned(), poisoned()
    operation.launch(
        4, table, None, 0, index=index, target=target, kept=None, kept_row=None, norm=norm, out=out
    )
    x, sums, last = random_rows(CAPACITY), random_rows(1, CAPACITY, dtype=torch.float32), poisoned()
    at = torch.tensor([63, 2], device=DEVICE)
    operation.launch(2, x, sums, 1, index=at, target=None, kept=None, kept_row=None, norm=norm, out=last)
    torch.cuda.synchronize()
    assert torch.equal(target[:4], table[index])
    assert torch.equal(out[2], out[3])
    stored = (x.float() + sums[0]).bfloat16()[at].double()
    wanted = stored * (stored.square().mean(1, keepdim=True) + RELEASED.rms_norm_eps).rsqrt() * norm.double()
    assert float((last[:2].double() - wanted).norm() / wanted.norm()) < 3e-3
