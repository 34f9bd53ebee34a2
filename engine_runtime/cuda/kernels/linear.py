"""One row times a weight [out, in], with what comes before and after it in the same kernel.

In: a row x, a Matrix in any format. Out: norm_linear, norm_gate_up or linear_add of cuda/operations.py. A
program computes a few output rows over all inputs, so that weights are read once, in order, and nothing has
to be added up between programs. The root mean square of x is taken on the way: rms_norm(x) * norm @ W^T is
((x * norm) @ W^T) / rms(x), so that the norm costs no pass of its own. Sums are float32.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _as_float(weight, FP8_BITS: tl.constexpr):
    """A tile in float32. FP8_BITS: e4m3 as bytes, for GPUs without that type, made 2**120 times too small."""
    if FP8_BITS:
        wide = weight.to(tl.int32)
        return (((wide & 0x80) << 24) | ((wide & 0x7F) << 20)).to(tl.float32, bitcast=True)
    return weight.to(tl.float32)


@triton.jit
def _finish(dot, gate, rms, rows, num_rows, scale, residual, out, HAS_NORM: tl.constexpr,
            HAS_SCALE: tl.constexpr, IS_GATED: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
            FP8_BITS: tl.constexpr):  # fmt: skip
    """Scales, gate and residual of finished sums [ROWS]; rows from num_rows on are not stored.

    `dot` are the sums of the row itself, or of `up` where IS_GATED.
    """
    unit = 1.3292279957849159e36 if FP8_BITS else 1.0  # 2**120
    load_rows = tl.minimum(rows, num_rows - 1)
    if HAS_NORM:
        dot *= rms
    if HAS_SCALE:
        dot *= tl.load(scale + load_rows + (num_rows if IS_GATED else 0)) * unit
    if IS_GATED:
        gate *= rms
        if HAS_SCALE:
            gate *= tl.load(scale + load_rows) * unit
        dot *= gate / (1.0 + tl.exp(-gate))
    if HAS_RESIDUAL:
        dot += tl.load(residual + load_rows).to(tl.float32)
    tl.store(out + rows, dot.to(out.dtype.element_ty), mask=rows < num_rows)


@triton.jit
def row_linear(x, norm, weight, scale, residual, out, num_rows, eps, COLUMNS: tl.constexpr,
               HAS_NORM: tl.constexpr, HAS_SCALE: tl.constexpr, IS_GATED: tl.constexpr,
               HAS_RESIDUAL: tl.constexpr, FP8_BITS: tl.constexpr, OVERLAPS: tl.constexpr,
               ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Native, fp8 and int8 weights [num_rows or 2 num_rows, COLUMNS]."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = weight + tl.minimum(rows, num_rows - 1).to(tl.int64)[:, None] * COLUMNS
    second = first + num_rows.to(tl.int64) * COLUMNS
    dots = tl.zeros((ROWS, BLOCK), tl.float32)
    gates = tl.zeros((ROWS, BLOCK), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in tl.static_range(0, COLUMNS, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < COLUMNS
        # Beyond the last column the first one is read, and counts nothing, since x is 0 there.
        at = tl.where(inside, columns, 0) if COLUMNS % BLOCK else columns
        tile = tl.load(first + at[None, :], eviction_policy="evict_first")
        if IS_GATED:
            up = tl.load(second + at[None, :], eviction_policy="evict_first")
        if OVERLAPS and start == 0:
            # Weights do not depend on the kernel before; everything else does.
            gdc_wait()
            gdc_launch_dependents()
        value = tl.load(x + columns, mask=inside, other=0.0).to(tl.float32)
        if HAS_NORM:
            squares += value * value
            value *= tl.load(norm + columns, mask=inside, other=None if inside is None else 0.0).to(
                tl.float32
            )
        if IS_GATED:
            gates += _as_float(tile, FP8_BITS) * value[None, :]
            dots += _as_float(up, FP8_BITS) * value[None, :]
        else:
            dots += _as_float(tile, FP8_BITS) * value[None, :]
    rms = tl.rsqrt(tl.sum(squares) / COLUMNS + eps)
    _finish(tl.sum(dots, axis=1), tl.sum(gates, axis=1), rms, rows, num_rows, scale, residual, out,
            HAS_NORM, HAS_SCALE, IS_GATED, HAS_RESIDUAL, FP8_BITS)  # fmt: skip


@triton.jit
def _group_sums(tile, low, high, plus_8):
    """Unscaled sums [ROWS, GROUPS] of packed weights [ROWS, GROUPS, 64] times inputs [GROUPS, 64]."""
    lows = (tile & 15).to(tl.float32) * low[None, :, :]
    return tl.sum(lows + (tile >> 4).to(tl.float32) * high[None, :, :], axis=2) - plus_8[None, :]


@triton.jit
def row_linear_int4(x, norm, weight, scale, residual, out, num_rows, eps, COLUMNS: tl.constexpr,
                    HAS_NORM: tl.constexpr, IS_GATED: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
                    OVERLAPS: tl.constexpr, NUM_GROUPS: tl.constexpr, ROWS: tl.constexpr,
                    GROUPS: tl.constexpr):  # fmt: skip
    """int4 weights [num_rows or 2 num_rows, NUM_GROUPS * 64] uint8 with scale [.., NUM_GROUPS] float16."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = tl.minimum(rows, num_rows - 1).to(tl.int64)
    second_row = row + num_rows
    places = tl.arange(0, 64)
    dots = tl.zeros((ROWS, GROUPS), tl.float32)
    gates = tl.zeros((ROWS, GROUPS), tl.float32)
    squares = tl.zeros((GROUPS,), tl.float32)
    for start in tl.static_range(0, NUM_GROUPS, GROUPS):
        groups = start + tl.arange(0, GROUPS)
        group = tl.minimum(groups, NUM_GROUPS - 1)
        place = group[:, None] * 64 + places[None, :]
        tile = tl.load(weight + row[:, None, None] * (NUM_GROUPS * 64) + place[None, :, :],
                       eviction_policy="evict_first")  # fmt: skip
        if IS_GATED:
            up = tl.load(weight + second_row[:, None, None] * (NUM_GROUPS * 64) + place[None, :, :],
                         eviction_policy="evict_first")  # fmt: skip
        if OVERLAPS and start == 0:
            gdc_wait()
            gdc_launch_dependents()
        low_at = groups[:, None] * 128 + places[None, :]
        high_at = low_at + 64
        low = tl.load(x + low_at, mask=low_at < COLUMNS, other=0.0).to(tl.float32)
        high = tl.load(x + high_at, mask=high_at < COLUMNS, other=0.0).to(tl.float32)
        if HAS_NORM:
            squares += tl.sum(low * low + high * high, axis=1)
            low *= tl.load(norm + low_at, mask=low_at < COLUMNS, other=0.0).to(tl.float32)
            high *= tl.load(norm + high_at, mask=high_at < COLUMNS, other=0.0).to(tl.float32)
        plus_8 = 8.0 * tl.sum(low + high, axis=1)  # what the stored plus 8 adds to the sum of a group
        sums = _group_sums(tile, low, high, plus_8)
        sums *= tl.load(scale + row[:, None] * NUM_GROUPS + group[None, :]).to(tl.float32)
        if IS_GATED:
            gates += sums
            sums = _group_sums(up, low, high, plus_8)
            sums *= tl.load(scale + second_row[:, None] * NUM_GROUPS + group[None, :]).to(tl.float32)
        dots += sums
    rms = tl.rsqrt(tl.sum(squares) / COLUMNS + eps)
    _finish(tl.sum(dots, axis=1), tl.sum(gates, axis=1), rms, rows, num_rows, scale, residual, out,
            HAS_NORM, False, IS_GATED, HAS_RESIDUAL, False)  # fmt: skip
