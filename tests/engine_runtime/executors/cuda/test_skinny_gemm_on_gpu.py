"""Products of several sequences in CUDA C++ on a real GPU, against products in float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.executors.cuda.skinny_gemm import SkinnyGemm, unsupported_reason
from engine_runtime.options import WeightFormat
from engine_runtime.quantization import Matrix, quantize
from tests.factories.tiny_lm import RELEASED

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
DEVICE = torch.device("cuda")
CAPACITY = 64
HIDDEN, INNER = RELEASED.hidden_size, RELEASED.intermediate_size
SHAPES = [
    (6144, HIDDEN),  # q, k and v
    (HIDDEN, HIDDEN),
    (HIDDEN, INNER),
    (RELEASED.audio_vocab, HIDDEN),
    (1000, 384),  # outputs and columns that fill no tile or ring
    (72, 128),
]
GATED = [(2 * INNER, HIDDEN), (2 * 344, 256), (16, 128)]
ROWS = [2, 8, 16, 32, 64]


@pytest.fixture(scope="module")
def gemm() -> SkinnyGemm:
    reason = unsupported_reason(DEVICE, torch.bfloat16, has_pdl=True)
    if reason is not None:
        pytest.skip(reason)
    torch.manual_seed(0)
    return SkinnyGemm(CAPACITY, DEVICE)


def make(shape: tuple[int, int], weight_format: WeightFormat) -> tuple[Matrix, Tensor]:
    """A weight, and rows in the dtype that it is multiplied in."""
    weight = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) / shape[1] ** 0.5
    dtype = torch.bfloat16 if weight_format == "native" else torch.float16
    return quantize(weight, weight_format), torch.randn(CAPACITY, shape[1], device=DEVICE, dtype=dtype)


def product(gemm: SkinnyGemm, rows: int, x: Tensor, matrix: Matrix, *, is_gated: bool) -> Tensor:
    """All rows of the buffer, NaN where nothing was written. [CAPACITY, out] float32"""
    outputs = matrix.shape[0]
    if is_gated:
        out = torch.full((CAPACITY, outputs // 2), torch.nan, device=DEVICE, dtype=x.dtype)
    else:
        splits = gemm.plan(matrix, is_split=True).splits
        out = torch.full((splits, CAPACITY, outputs), torch.nan, device=DEVICE)
    gemm.launch(rows, x, matrix, out, is_gated=is_gated, is_split=True)
    torch.cuda.synchronize()
    return out.float() if is_gated else out.sum(0)


@pytest.mark.parametrize("weight_format", ["native", "fp8"])
@pytest.mark.parametrize(
    ("shape", "is_gated"), [*((shape, False) for shape in SHAPES), *((shape, True) for shape in GATED)]
)
@torch.inference_mode()
def test_products_of_every_number_of_rows(
    shape: tuple[int, int], is_gated: bool, weight_format: WeightFormat, gemm: SkinnyGemm
) -> None:
    matrix, x = make(shape, weight_format)
    wanted = x.double() @ matrix.dense(torch.float32).double().t()
    if is_gated:
        gate, up = wanted.chunk(2, dim=1)
        wanted = torch.nn.functional.silu(gate) * up
    first: Tensor | None = None
    for rows in ROWS:
        found = product(gemm, rows, x, matrix, is_gated=is_gated)
        error = (found - wanted)[:rows].norm() / wanted[:rows].norm()
        assert float(error) < (3e-3 if is_gated else 1e-5), rows
        assert bool(found[max(8, rows) :].isnan().all())
        first = found[:2] if first is None else first
        assert torch.equal(found[:2], first)  # a row does not depend on the others


@pytest.mark.parametrize("weight_format", ["native", "fp8"])
@torch.inference_mode()
def test_a_chain_of_dependent_launches(weight_format: WeightFormat, gemm: SkinnyGemm) -> None:
    """Each kernel starts while the one before it still runs, and waits for its results."""
    gate_up, x = make((2 * INNER, HIDDEN), weight_format)
    down, gated = make((HIDDEN, INNER), weight_format)
    splits = gemm.plan(down, is_split=True).splits
    sums = torch.zeros(splits, CAPACITY, HIDDEN, device=DEVICE)
    calls = GraphedCalls(DEVICE)

    def chain(rows: int) -> None:
        for _ in range(10):
            gemm.launch(rows, x, gate_up, gated, is_gated=True, is_split=False)
            gemm.launch(rows, gated, down, sums, is_gated=False, is_split=True)

    for rows in (8, 64):
        for _ in range(5):
            x.copy_(torch.randn_like(x))
            hidden = product(gemm, rows, x, gate_up, is_gated=True)
            wanted = product(gemm, rows, hidden.nan_to_num().to(x.dtype), down, is_gated=False)[:rows]
            gated.zero_()
            calls.run(rows, lambda rows=rows: chain(rows))
            torch.cuda.synchronize()
            assert torch.equal(sums.sum(0)[:rows], wanted)
