"""Small-M GEMM: a few rows times a quantized weight [out, in], read in its stored format.

In: rows x, a Matrix in fp8, int8 or int4. Out: x @ weight^T, plus a residual. Up to a few dozen rows the time
is dominated by reading the weight; dequantizing it first (executors/cuda/prefill.py) would move it three
times, twice in full size. 8-bit and 4-bit values are exact in the dtype of x, so that tensor cores multiply
them directly; scales are applied to the float32 sums.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine_runtime.cuda.kernels.flow_estimator import _put
from engine_runtime.cuda.kernels.linear import BITS_UNIT, _as_float


@triton.jit(do_not_specialize=["num_rows"])
def small_batch_linear(x, weight, scale, residual, out, num_rows, OUT: tl.constexpr, COLUMNS: tl.constexpr,
             HAS_RESIDUAL: tl.constexpr, FP8_BITS: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr,
             BLOCK: tl.constexpr):  # fmt: skip
    """Grid (tiles of outputs). fp8 and int8: weight [OUT, COLUMNS], scale [OUT] float32."""
    rows, columns = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_row, is_output = rows < num_rows, outputs < OUT
    from_output = weight + tl.minimum(outputs, OUT - 1)[:, None].to(tl.int64) * COLUMNS
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for start in range(0, COLUMNS, BLOCK):
        column = start + columns
        is_column = column < COLUMNS
        # Load finite values beyond the last column, because 0 x NaN is not 0.
        tile = tl.load(from_output + (column if COLUMNS % BLOCK == 0 else tl.minimum(column, COLUMNS - 1)))
        value = tl.load(x + rows[:, None] * COLUMNS + column[None, :],
                        mask=is_row[:, None] & is_column[None, :], other=0.0)  # fmt: skip
        wide = _as_float(tile, FP8_BITS)
        if FP8_BITS:
            wide *= BITS_UNIT
        total += tl.dot(value, tl.trans(wide.to(value.dtype)), input_precision="ieee")
    total *= tl.load(scale + outputs, mask=is_output, other=0.0)[None, :]
    _put(total, out, residual, out, rows, is_row, outputs, is_output, OUT, False, HAS_RESIDUAL)


@triton.jit(do_not_specialize=["num_rows"])
def small_batch_linear_int4(x, weight, scale, residual, out, num_rows, OUT: tl.constexpr,
                  COLUMNS: tl.constexpr,
                  NUM_GROUPS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, ROWS: tl.constexpr,
                  OUTPUTS: tl.constexpr):  # fmt: skip
    """Grid (tiles of outputs). weight [OUT, NUM_GROUPS * 64] bytes as quantization.py packs them,
    scale [OUT, NUM_GROUPS] float16. One group of 128 columns at a time."""
    rows, places = tl.arange(0, ROWS), tl.arange(0, 64)
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_row, is_output = rows < num_rows, outputs < OUT
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for group in range(0, NUM_GROUPS):
        packed = tl.load(weight + (outputs[:, None].to(tl.int64) * NUM_GROUPS + group) * 64 + places[None, :],
                         mask=is_output[:, None], other=0)  # fmt: skip
        group_scale = tl.load(scale + outputs * NUM_GROUPS + group, mask=is_output, other=0.0).to(tl.float32)
        column = group * 128 + places
        at = rows[:, None] * COLUMNS + column[None, :]
        first = tl.load(x + at, mask=is_row[:, None] & (column < COLUMNS)[None, :], other=0.0)
        second = tl.load(x + at + 64, mask=is_row[:, None] & (column + 64 < COLUMNS)[None, :], other=0.0)
        low = ((packed & 15).to(tl.float32) - 8.0).to(first.dtype)
        high = ((packed >> 4).to(tl.float32) - 8.0).to(first.dtype)
        dot = tl.dot(first, tl.trans(low), input_precision="ieee")
        dot = tl.dot(second, tl.trans(high), acc=dot, input_precision="ieee")
        total += dot * group_scale[None, :]
    _put(total, out, residual, out, rows, is_row, outputs, is_output, OUT, False, HAS_RESIDUAL)
