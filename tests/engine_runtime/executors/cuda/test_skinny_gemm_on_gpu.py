"""Products of several sequences in CUDA C++ on a real GPU, against products in float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine_runtime.cuda.graphs import GraphedCalls
from engine_runtime.executors.cuda.skinny_gemm import RowNorms, SkinnyGemm, unsupported_reason
from engine_runtime.options import WeightFormat
from engine_runtime.quantization import Matrix, quantize
from tests.factories.tiny_lm import RELEASED
from tests.tools.interleaved_rows import in_order, interleaved

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
DEVICE = torch.device("cuda")
CAPACITY, EPS = 64, RELEASED.rms_norm_eps
HIDDEN, INNER = RELEASED.hidden_size, RELEASED.intermediate_size
SHAPES = [
    (6144, HIDDEN),  # q, k and v
    (HIDDEN, HIDDEN),
    (HIDDEN, INNER),
    (RELEASED.audio_vocab, HIDDEN),
    (1000, 384),  # outputs and columns that fill no tile or ring
    (72, 128),
]
GATED = [(2 * INNER, HIDDEN), (2 * 352, 256), (32, 128)]
NARROW_GATED = [(2 * 344, 256), (16, 128)]
"""With bf16 weights only: interleaved rows have a multiple of 16 columns."""
CASES: list[tuple[tuple[int, int], bool, WeightFormat]] = [
    *((shape, False, "native") for shape in SHAPES),
    *((shape, False, "fp8") for shape in SHAPES),
    *((shape, True, "native") for shape in GATED + NARROW_GATED),
    *((shape, True, "fp8") for shape in GATED),
]
"""Shape, whether it is gated, format of the weight."""
ROWS = [2, 8, 16, 32, 64]


@pytest.fixture(scope="module")
def gemm() -> SkinnyGemm:
    reason = unsupported_reason(DEVICE, torch.bfloat16, has_pdl=True)
    if reason is not None:
        pytest.skip(reason)
    torch.manual_seed(0)
    return SkinnyGemm(CAPACITY, EPS, DEVICE)


def make(shape: tuple[int, int], weight_format: WeightFormat) -> tuple[Matrix, Tensor]:
    """A weight, and rows in the dtype that it is multiplied in."""
    weight = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) / shape[1] ** 0.5
    dtype = torch.bfloat16 if weight_format == "native" else torch.float16
    return quantize(weight, weight_format), torch.randn(CAPACITY, shape[1], device=DEVICE, dtype=dtype)


def product(
    gemm: SkinnyGemm,
    rows: int,
    x: Tensor,
    matrix: Matrix,
    *,
    is_gated: bool,
    norms: RowNorms | None = None,
) -> Tensor:
    """All rows of the buffer, NaN where nothing was written, with columns in order. [CAPACITY, out]
    float32"""
    outputs, is_interleaved = matrix.shape[0], matrix.format == "fp8"
    x = interleaved(x) if is_interleaved else x
    if is_gated:
        out = torch.full((CAPACITY, outputs // 2), torch.nan, device=DEVICE, dtype=x.dtype)
    else:
        out = torch.full((gemm.plan(matrix).splits, CAPACITY, outputs), torch.nan, device=DEVICE)
    gemm.launch(rows, x, matrix, out, is_gated=is_gated, norms=norms)
    torch.cuda.synchronize()
    if not is_gated:
        return out.sum(0)
    return (in_order(out) if is_interleaved else out).float()


@pytest.mark.parametrize(("shape", "is_gated", "weight_format"), CASES)
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
        assert float(error) < (4e-3 if is_gated else 1e-5), rows
        assert bool(found[max(8, rows) :].isnan().all())
        first = found[:2] if first is None else first
        assert torch.equal(found[:2], first)  # a row does not depend on the others


@pytest.mark.parametrize("rows", [2, 8, 64])
@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("weight_format", ["native", "fp8"])
@torch.inference_mode()
def test_rows_whose_norm_lacks_a_factor(
    weight_format: WeightFormat, is_gated: bool, rows: int, gemm: SkinnyGemm
) -> None:
    matrix, x = make((2 * INNER if is_gated else 6144, HIDDEN), weight_format)
    norms = RowNorms(
        torch.rand(CAPACITY, 16, device=DEVICE) * HIDDEN,
        torch.rand(CAPACITY, device=DEVICE) + 0.1,
        torch.full((CAPACITY,), torch.nan, device=DEVICE),
    )
    found = product(gemm, rows, x, matrix, is_gated=is_gated, norms=norms)[:rows]
    whole = (norms.squares.double().sum(1) / HIDDEN + EPS).rsqrt()
    wanted = x.double() @ matrix.dense(torch.float32).double().t()
    wanted = (wanted * (whole / norms.applied.double())[:, None])[:rows]
    if is_gated:
        gate, up = wanted.chunk(2, dim=1)
        wanted = torch.nn.functional.silu(gate) * up
    assert float((found - wanted).norm() / wanted.norm()) < (4e-3 if is_gated else 1e-5)
    assert float((norms.whole.double() / whole - 1)[:rows].abs().max()) < 1e-5
    assert bool(norms.whole[max(8, rows) :].isnan().all())


@pytest.mark.parametrize("weight_format", ["native", "fp8"])
@torch.inference_mode()
def test_a_chain_of_dependent_launches(weight_format: WeightFormat, gemm: SkinnyGemm) -> None:
    """Each kernel starts while the one before it still runs, and waits for its results."""
    gate_up, x = make((2 * INNER, HIDDEN), weight_format)
    down, gated = make((HIDDEN, INNER), weight_format)
    sums = torch.zeros(gemm.plan(down).splits, CAPACITY, HIDDEN, device=DEVICE)
    stored = torch.zeros_like(x)
    calls = GraphedCalls(DEVICE)

    def chain(rows: int) -> None:
        for _ in range(10):
            gemm.launch(rows, stored, gate_up, gated, is_gated=True)
            gemm.launch(rows, gated, down, sums)

    for rows in (8, 64):
        for _ in range(5):
            x = torch.randn_like(x)
            stored.copy_(interleaved(x) if weight_format == "fp8" else x)
            hidden = product(gemm, rows, x, gate_up, is_gated=True)
            wanted = product(gemm, rows, hidden.nan_to_num().to(x.dtype), down, is_gated=False)[:rows]
            gated.zero_()
            calls.run(rows, lambda rows=rows: chain(rows))
            torch.cuda.synchronize()
            assert torch.equal(sums.sum(0)[:rows], wanted)
