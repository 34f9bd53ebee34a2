"""Weight formats: error, size, dequantization."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine_runtime.options import WeightFormat
from engine_runtime.quantization import GROUP, bytes_of, quantize, to_fp8

FORMATS: tuple[WeightFormat, ...] = ("fp8", "int8", "int4")
# Relative to the largest weight of a scale: half a step; for int4 a full step on the side without an 8.
LARGEST_ERROR: dict[WeightFormat, float] = {"int8": 0.5 / 127, "int4": 1 / 8}


@pytest.mark.parametrize("weight_format", FORMATS)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 9), columns=st.integers(1, 300))
def test_every_weight_stays_within_the_step_of_its_format(
    weight_format: WeightFormat, seed: int, rows: int, columns: int
) -> None:
    torch.manual_seed(seed)
    weight = torch.randn(rows, columns) * 10 ** torch.empty(rows, 1).uniform_(-3, 1)
    matrix = quantize(weight, weight_format)
    error = (matrix.dense(torch.float32) - weight).abs()
    largest = weight.abs().amax(dim=1, keepdim=True)
    if weight_format == "fp8":
        assert (error <= weight.abs() / 16 + largest / 448 / 512).all()
    else:
        slack = 4e-5 if weight_format == "int4" else 0.0  # the smallest scale that float16 holds
        assert (error <= largest * LARGEST_ERROR[weight_format] * 1.001 + slack).all()
    assert matrix.bytes == bytes_of((rows, columns), weight_format, 4)


@given(seed=st.integers(0, 10**6), rows=st.integers(1, 5), groups=st.integers(1, 4))
def test_int4_packing_is_undone_exactly(seed: int, rows: int, groups: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    levels = torch.randint(-8, 8, (rows, groups, GROUP), generator=generator).float()
    levels[..., 0] = -8.0  # so that the scale is 1
    matrix = quantize(levels.flatten(1), "int4")
    assert matrix.scale is not None
    assert torch.equal(matrix.scale, torch.ones(rows, groups, dtype=torch.float16))
    assert torch.equal(matrix.dense(torch.float32), levels.flatten(1))


def test_rows_of_zeros_and_tiny_weights_survive() -> None:
    weight = torch.zeros(3, 256)
    weight[1, 7] = 1e-9
    weight[2, 200] = 1e-3
    for weight_format in FORMATS:
        dense = quantize(weight, weight_format).dense(torch.float32)
        assert torch.isfinite(dense).all()
        assert not dense[0].any()
        assert dense[2, 200].item() == pytest.approx(1e-3, rel=0.03)


def test_native_is_the_weight_itself() -> None:
    weight = torch.randn(4, 6)
    matrix = quantize(weight, "native")
    assert torch.equal(matrix.dense(torch.float32), weight)
    assert matrix.bytes == bytes_of((4, 6), "native", 4) == 96


@pytest.mark.parametrize("weight_format", FORMATS)
def test_a_dense_copy_goes_into_a_buffer_that_is_there(weight_format: WeightFormat) -> None:
    matrix = quantize(torch.randn(6, 200), weight_format)
    scratch = torch.full((2000,), 7.0)
    dense = matrix.dense(torch.float32, scratch)
    assert dense.data_ptr() == scratch.data_ptr()
    assert torch.equal(dense, matrix.dense(torch.float32))
    assert (scratch[1200:] == 7.0).all()


def test_what_is_too_large_for_fp8_becomes_its_largest_number() -> None:
    assert to_fp8(torch.tensor([1e6, -1e6, 3.0])).float().tolist() == [448.0, -448.0, 3.0]
