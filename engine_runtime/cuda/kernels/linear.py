"""One row times a weight [out, in], with prologue and epilogue fused.

In: a row x, a Matrix in any format. Out: norm_linear, norm_gate_up or linear_add of
executors/cuda/layerwise_backend.py. A few programs per multiprocessor share the output rows, so that each
prepares x once for many rows, and the weights of the next rows are copied to shared memory while the current
ones are multiplied. Weights are read once, sequentially, and no reduction across programs is needed. The root
mean square of x is applied last: rms_norm(x) * norm @ W^T is ((x * norm) @ W^T) / rms(x).

Native and fp8 weights are multiplied as float32. int8 and int4 weights come as int32 words of four and eight;
x is quantized to 16 bits relative to its largest magnitude and split into two bytes, so that one instruction
multiplies four weights and sums are exact integers; the error of an 8-bit weight is far larger than that of
this rounding.
"""

from __future__ import annotations

import triton
import triton.language as tl

BITS_UNIT = tl.constexpr(2.0**120)
"""Scale that corrects the exponent bias of `_as_float`."""


@triton.jit
def _as_float(weight, FP8_BITS: tl.constexpr):
    """A tile in float32. FP8_BITS: e4m3 as bytes, for GPUs without that type; the result lacks the factor
    BITS_UNIT."""
    if FP8_BITS:
        wide = weight.to(tl.int32)
        return (((wide & 0x80) << 24) | ((wide & 0x7F) << 20)).to(tl.float32, bitcast=True)
    return weight.to(tl.float32)


@triton.jit
def _epilogue(dot, gate, x_scale, row, num_rows, scale, residual, out, HAS_SCALE: tl.constexpr,
            IS_GATED: tl.constexpr, HAS_RESIDUAL: tl.constexpr):  # fmt: skip
    """Scales, gate and residual of finished sums [ROWS]; rows from num_rows on are not stored.

    `dot` are the sums of the row itself, or of `up` where IS_GATED.
    """
    load_row = tl.minimum(row, num_rows - 1)
    dot *= x_scale
    if HAS_SCALE:
        dot *= tl.load(scale + load_row + (num_rows if IS_GATED else 0))
    if IS_GATED:
        gate *= x_scale
        if HAS_SCALE:
            gate *= tl.load(scale + load_row)
        dot *= gate / (1.0 + tl.exp(-gate))
    if HAS_RESIDUAL:
        dot += tl.load(residual + load_row).to(tl.float32)
    tl.store(out + row, dot.to(out.dtype.element_ty), mask=row < num_rows)


@triton.jit
def row_linear(x, norm, weight, scale, residual, out, num_rows, eps, COLUMNS: tl.constexpr,
               WIDTH: tl.constexpr, HAS_NORM: tl.constexpr, HAS_SCALE: tl.constexpr, IS_GATED: tl.constexpr,
               HAS_RESIDUAL: tl.constexpr, FP8_BITS: tl.constexpr, ROWS: tl.constexpr,
               STAGES: tl.constexpr):  # fmt: skip
    """Native and fp8 weights [num_rows or 2 num_rows, COLUMNS]. WIDTH: COLUMNS up to a power of two."""
    columns = tl.arange(0, WIDTH)
    inside = columns < COLUMNS
    value = tl.load(x + columns, mask=inside, other=0.0).to(tl.float32)
    x_scale = BITS_UNIT if FP8_BITS else 1.0
    if HAS_NORM:
        x_scale *= tl.rsqrt(tl.sum(value * value) / COLUMNS + eps)
        value *= tl.load(norm + columns, mask=inside, other=0.0).to(tl.float32)
    rows = tl.arange(0, ROWS)
    for tile_index in tl.range(
        tl.program_id(0), tl.cdiv(num_rows, ROWS), tl.num_programs(0), num_stages=STAGES
    ):
        row = tile_index * ROWS + rows
        at = tl.minimum(row, num_rows - 1)[:, None] * COLUMNS + columns[None, :]
        # Omit a mask that is always true, because it would still be evaluated.
        mask = None if COLUMNS == WIDTH else inside[None, :] & (rows >= 0)[:, None]
        other = None if COLUMNS == WIDTH else 0.0
        tile = tl.load(weight + at, mask=mask, other=other)
        dot = tl.sum(_as_float(tile, FP8_BITS) * value[None, :], axis=1)
        gate = dot
        if IS_GATED:
            up = tl.load(weight + at + num_rows * COLUMNS, mask=mask, other=other)
            dot = tl.sum(_as_float(up, FP8_BITS) * value[None, :], axis=1)
        _epilogue(dot, gate, x_scale, row, num_rows, scale, residual, out, HAS_SCALE, IS_GATED,
                HAS_RESIDUAL)  # fmt: skip


@triton.jit
def _dot_bytes(a, b, c, HAS_ASM: tl.constexpr):
    """c + the products of the four signed bytes of words a and b."""
    if HAS_ASM:
        return tl.inline_asm_elementwise("dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, c],
                                         dtype=tl.int32, is_pure=True, pack=1)  # fmt: skip
    for place in tl.static_range(4):
        c += ((a << (24 - 8 * place)) >> 24) * ((b << (24 - 8 * place)) >> 24)
    return c


@triton.jit
def _load_four(pointer, at, limit):
    """Four consecutive values from `at` on, each as a separate tensor, in float32; 0 from `limit` on."""
    a = tl.load(pointer + at, mask=at < limit, other=0.0).to(tl.float32)
    b = tl.load(pointer + at + 1, mask=at + 1 < limit, other=0.0).to(tl.float32)
    c = tl.load(pointer + at + 2, mask=at + 2 < limit, other=0.0).to(tl.float32)
    d = tl.load(pointer + at + 3, mask=at + 3 < limit, other=0.0).to(tl.float32)
    return a, b, c, d


@triton.jit
def _largest(a, b, c, d):
    return tl.max(tl.maximum(tl.maximum(tl.abs(a), tl.abs(b)), tl.maximum(tl.abs(c), tl.abs(d))))


@triton.jit
def _word(a, b, c, d):
    return (a & 255) | ((b & 255) << 8) | ((c & 255) << 16) | (d << 24)


@triton.jit
def _planes(a, b, c, d, step):
    """Values -> words of the high and of the low (signed) bytes of round(value / step), and their sums."""
    a = tl.floor(a / step + 0.5).to(tl.int32)
    b = tl.floor(b / step + 0.5).to(tl.int32)
    c = tl.floor(c / step + 0.5).to(tl.int32)
    d = tl.floor(d / step + 0.5).to(tl.int32)
    high_a, high_b, high_c, high_d = (a + 128) >> 8, (b + 128) >> 8, (c + 128) >> 8, (d + 128) >> 8
    low = _word(a - high_a * 256, b - high_b * 256, c - high_c * 256, d - high_d * 256)
    return _word(high_a, high_b, high_c, high_d), low, a + b + c + d


LARGEST_INT16_X = tl.constexpr(32000.0)
"""Quantized value of the largest x: the low byte's carry still fits into the high byte."""


@triton.jit
def _dot_int8(tile, high, low, HAS_ASM: tl.constexpr):
    """Sums [ROWS] of words [ROWS, WORDS] times the planes [WORDS] of x."""
    none = tl.zeros_like(tile)
    found = _dot_bytes(tile, high[None, :] + none, none, HAS_ASM) * 256
    return tl.sum((found + _dot_bytes(tile, low[None, :] + none, none, HAS_ASM)).to(tl.float32), axis=1)


@triton.jit
def row_linear_int8(x, norm, weight, scale, residual, out, num_rows, eps, COLUMNS: tl.constexpr,
                    WIDTH: tl.constexpr, HAS_NORM: tl.constexpr, IS_GATED: tl.constexpr,
                    HAS_RESIDUAL: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
                    HAS_ASM: tl.constexpr):  # fmt: skip
    """int8 weights as words [num_rows or 2 num_rows, COLUMNS / 4] int32."""
    WORDS: tl.constexpr = COLUMNS // 4
    words = tl.arange(0, WIDTH // 4)
    inside = words < WORDS
    a, b, c, d = _load_four(x, words * 4, COLUMNS)
    x_scale = 1.0
    if HAS_NORM:
        x_scale = tl.rsqrt(tl.sum(a * a + b * b + c * c + d * d) / COLUMNS + eps)
        norm_a, norm_b, norm_c, norm_d = _load_four(norm, words * 4, COLUMNS)
        a, b, c, d = a * norm_a, b * norm_b, c * norm_c, d * norm_d
    step = tl.maximum(_largest(a, b, c, d), 1e-30) / LARGEST_INT16_X
    high, low, _ = _planes(a, b, c, d, step)
    x_scale *= step
    rows = tl.arange(0, ROWS)
    for tile_index in tl.range(
        tl.program_id(0), tl.cdiv(num_rows, ROWS), tl.num_programs(0), num_stages=STAGES
    ):
        row = tile_index * ROWS + rows
        at = tl.minimum(row, num_rows - 1)[:, None] * WORDS + words[None, :]
        mask = None if COLUMNS == WIDTH else inside[None, :] & (rows >= 0)[:, None]
        other = None if COLUMNS == WIDTH else 0
        dot = _dot_int8(tl.load(weight + at, mask=mask, other=other), high, low, HAS_ASM)
        gate = dot
        if IS_GATED:
            dot = _dot_int8(
                tl.load(weight + at + num_rows * WORDS, mask=mask, other=other), high, low, HAS_ASM
            )
        _epilogue(dot, gate, x_scale, row, num_rows, scale, residual, out, True, IS_GATED, HAS_RESIDUAL)


@triton.jit
def _dot_int4(tile, scale, high_1, low_1, high_2, low_2, minus_8, HAS_ASM: tl.constexpr):
    """Sums [ROWS] of words [ROWS, WORDS] times the planes of their low (1) and high (2) halves' columns."""
    none = tl.zeros_like(tile)
    first, second = tile & 0x0F0F0F0F, (tile >> 4) & 0x0F0F0F0F
    big = _dot_bytes(first, high_1[None, :] + none, none, HAS_ASM)
    big = _dot_bytes(second, high_2[None, :] + none, big, HAS_ASM)
    small = _dot_bytes(first, low_1[None, :] + none, minus_8[None, :] + none, HAS_ASM)
    small = _dot_bytes(second, low_2[None, :] + none, small, HAS_ASM)
    return tl.sum((big * 256 + small).to(tl.float32) * scale, axis=1)


@triton.jit
def row_linear_int4(x, norm, weight, scale, residual, out, num_rows, eps, COLUMNS: tl.constexpr,
                    NUM_GROUPS: tl.constexpr, WIDTH: tl.constexpr, HAS_NORM: tl.constexpr,
                    IS_GATED: tl.constexpr, HAS_RESIDUAL: tl.constexpr, ROWS: tl.constexpr,
                    STAGES: tl.constexpr, HAS_ASM: tl.constexpr):  # fmt: skip
    """int4 weights as words [num_rows or 2 num_rows, NUM_GROUPS * 16] int32, scale [.., NUM_GROUPS] float16.

    WIDTH: NUM_GROUPS * 128 up to a power of two. Byte b of word w of a group holds the columns 4 w + b (low
    half) and 64 + 4 w + b, both plus 8; columns from COLUMNS on have no effect, because x is 0 there.
    """
    WORDS: tl.constexpr = NUM_GROUPS * 16
    words = tl.arange(0, WIDTH // 8)
    inside = words < WORDS
    group = tl.minimum(words // 16, NUM_GROUPS - 1)
    column = words // 16 * 128 + words % 16 * 4
    a, b, c, d = _load_four(x, column, COLUMNS)
    e, f, g, h = _load_four(x, column + 64, COLUMNS)
    x_scale = 1.0
    if HAS_NORM:
        squares = a * a + b * b + c * c + d * d + e * e + f * f + g * g + h * h
        x_scale = tl.rsqrt(tl.sum(squares) / COLUMNS + eps)
        norm_a, norm_b, norm_c, norm_d = _load_four(norm, column, COLUMNS)
        a, b, c, d = a * norm_a, b * norm_b, c * norm_c, d * norm_d
        norm_a, norm_b, norm_c, norm_d = _load_four(norm, column + 64, COLUMNS)
        e, f, g, h = e * norm_a, f * norm_b, g * norm_c, h * norm_d
    step = tl.maximum(tl.maximum(_largest(a, b, c, d), _largest(e, f, g, h)), 1e-30) / LARGEST_INT16_X
    high_1, low_1, sum_1 = _planes(a, b, c, d, step)
    high_2, low_2, sum_2 = _planes(e, f, g, h, step)
    minus_8 = -8 * (sum_1 + sum_2)
    x_scale *= step
    rows = tl.arange(0, ROWS)
    for tile_index in tl.range(
        tl.program_id(0), tl.cdiv(num_rows, ROWS), tl.num_programs(0), num_stages=STAGES
    ):
        row = tile_index * ROWS + rows
        load_row = tl.minimum(row, num_rows - 1)[:, None]
        at, scale_at = load_row * WORDS + words[None, :], load_row * NUM_GROUPS + group[None, :]
        mask = None if NUM_GROUPS * 128 == WIDTH else inside[None, :] & (rows >= 0)[:, None]
        other = None if NUM_GROUPS * 128 == WIDTH else 0
        tile = tl.load(weight + at, mask=mask, other=other)
        scales = tl.load(scale + scale_at).to(tl.float32)
        dot = _dot_int4(tile, scales, high_1, low_1, high_2, low_2, minus_8, HAS_ASM)
        gate = dot
        if IS_GATED:
            tile = tl.load(weight + at + num_rows * WORDS, mask=mask, other=other)
            scales = tl.load(scale + scale_at + num_rows * NUM_GROUPS).to(tl.float32)
            dot = _dot_int4(tile, scales, high_1, low_1, high_2, low_2, minus_8, HAS_ASM)
        _epilogue(dot, gate, x_scale, row, num_rows, scale, residual, out, False, IS_GATED, HAS_RESIDUAL)
