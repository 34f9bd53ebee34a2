"""Linear layers of a decode step of several rows: skinny GEMM, and the norm with its residual between them.

In: rows x [capacity, in], of which the first ROWS count. Out: float32 partial sums [SPLITS, capacity, out],
one for each part of the inputs, which the next kernel adds up; or rows, where one program has the whole sum.
The weight is the first operand of the matrix product and the rows are the second one, so that a weight tile
goes to the tensor cores as it was loaded, whatever the number of rows. The number of parts does not depend on
ROWS: each output is summed in the same order in a batch of any size.

Up to 64 rows the time is mostly that of reading the weight. Tiles are copied to shared memory by cp.async, or
by TMA (USES_TMA): one instruction for a tile, so that the threads are free to convert 8-bit weights. Weights
that cp.async copies leave the L2 cache first, so that activations, tables and code stay there. While an
earlier kernel still runs, a program requests the beginning of its weights (PREFETCH columns) into the L2
cache; see pdl.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine_runtime.cuda.kernels.linear import BITS_UNIT, _as_float
from engine_runtime.cuda.kernels.pdl import pdl_start_next, pdl_wait


@triton.jit
def prefetch_l2(pointers, num_bytes):
    """Request `num_bytes` (a multiple of 16) from each of `pointers` (16-byte aligned) into the L2 cache."""
    sizes = tl.zeros(pointers.shape, tl.int32) + num_bytes
    tl.inline_asm_elementwise(
        "{ cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0; }", "=r,l,r",
        [pointers.to(tl.int64), sizes], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _converted(tile, dtype: tl.constexpr, FP8_BITS: tl.constexpr):
    """A weight tile in the dtype of the rows."""
    if FP8_BITS:
        return (_as_float(tile, True) * BITS_UNIT).to(dtype)
    if tile.dtype == dtype:
        return tile
    if tile.dtype == tl.float8e4nv:
        # to float16 directly: every e4m3 number is one
        return tile.to(tl.float16).to(dtype)
    return tile.to(tl.float32).to(dtype)


@triton.jit
def _row_tile(x, x_tiles, column, columns, rows, COLUMNS: tl.constexpr, IS_EVEN: tl.constexpr,
              USES_TMA: tl.constexpr):  # fmt: skip
    """[columns, rows] from `column` on; 0 beyond the last column."""
    if USES_TMA:
        return tl.trans(x_tiles.load([0, column]))
    at = rows[None, :] * COLUMNS + (column + columns)[:, None]
    if IS_EVEN:
        return tl.load(x + at)
    inside = column + columns < COLUMNS
    return tl.load(x + at, mask=inside[:, None] & (rows >= 0)[None, :], other=0.0)


@triton.jit
def _weight_tile(from_output, weight_tiles, output, column, columns, COLUMNS: tl.constexpr,
                 IS_EVEN: tl.constexpr, USES_TMA: tl.constexpr):  # fmt: skip
    """[outputs, columns] from `output` and `column` on. Beyond the last column finite values, since 0 x NaN
    is not 0."""
    if USES_TMA:
        return weight_tiles.load([output, column])
    # `column` is that of the first output; the minimum keeps the loads inside the row
    inside = column + columns if IS_EVEN else tl.minimum(column + columns, COLUMNS - 1)
    return tl.load(from_output[:, None] + inside[None, :], eviction_policy="evict_first")


@triton.jit
def batch_linear(x, weight, x_tiles, weight_tiles, scale, out, CAPACITY: tl.constexpr, OUT: tl.constexpr,
                 COLUMNS: tl.constexpr, SPLITS: tl.constexpr, IS_GATED: tl.constexpr,
                 HAS_SCALE: tl.constexpr, FP8_BITS: tl.constexpr, USES_TMA: tl.constexpr,
                 ROWS: tl.constexpr, OUTPUTS: tl.constexpr, BLOCK: tl.constexpr, PREFETCH: tl.constexpr,
                 STARTS_NEXT_LATE: tl.constexpr, USES_PDL: tl.constexpr):  # fmt: skip
    """Grid (tiles of outputs, SPLITS). weight [OUT or 2 OUT, COLUMNS], scale [OUT or 2 OUT] float32.
    x_tiles, weight_tiles: if USES_TMA, descriptors of x in tiles [ROWS, BLOCK] and of weight in tiles
    [OUTPUTS, BLOCK].

    out [SPLITS, CAPACITY, OUT]; if IS_GATED (one split) silu(gate) * up, gate being the first OUT outputs.
    STARTS_NEXT_LATE: the next kernel starts when the weights were read, and not earlier.
    """
    first_output = tl.program_id(0) * OUTPUTS
    outputs = first_output + tl.arange(0, OUTPUTS)
    is_output = outputs < OUT
    load_output = tl.minimum(outputs, OUT - 1)
    BLOCKS: tl.constexpr = (COLUMNS + BLOCK - 1) // BLOCK
    IS_EVEN: tl.constexpr = COLUMNS % BLOCK == 0
    first = tl.program_id(1) * BLOCKS // SPLITS * BLOCK
    last = (tl.program_id(1) + 1) * BLOCKS // SPLITS * BLOCK
    from_output = weight + load_output.to(tl.int64) * COLUMNS
    from_up = from_output + OUT * COLUMNS
    if PREFETCH > 0:
        num_bytes = tl.minimum(PREFETCH, last - first) * weight.dtype.element_ty.primitive_bitwidth // 8
        prefetch_l2(from_output + first, num_bytes)
        if IS_GATED:
            prefetch_l2(from_up + first, num_bytes)
    pdl_wait(USES_PDL, not STARTS_NEXT_LATE)
    rows, columns = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    up = tl.zeros((OUTPUTS, ROWS), tl.float32)
    for column in range(first, last, BLOCK):
        value = _row_tile(x, x_tiles, column, columns, rows, COLUMNS, IS_EVEN, USES_TMA)
        tile = _weight_tile(from_output, weight_tiles, first_output, column, columns, COLUMNS, IS_EVEN,
                            USES_TMA)  # fmt: skip
        tile = _converted(tile, value.dtype, FP8_BITS)
        total = tl.dot(tile, value, acc=total, input_precision="ieee")
        if IS_GATED:
            tile = _weight_tile(from_up, weight_tiles, OUT + first_output, column, columns, COLUMNS, IS_EVEN,
                                USES_TMA)  # fmt: skip
            tile = _converted(tile, value.dtype, FP8_BITS)
            up = tl.dot(tile, value, acc=up, input_precision="ieee")
    pdl_start_next(USES_PDL and STARTS_NEXT_LATE)
    if HAS_SCALE:
        total *= tl.load(scale + load_output)[:, None]
        if IS_GATED:
            up *= tl.load(scale + OUT + load_output)[:, None]
    if IS_GATED:
        total = total / (1.0 + tl.exp(-total)) * up
        if out.dtype.element_ty == tl.float16:
            total = tl.minimum(tl.maximum(total, -65504.0), 65504.0)
    to = out + (tl.program_id(1) * CAPACITY + rows)[None, :] * OUT + outputs[:, None]
    tl.store(to, total.to(out.dtype.element_ty), mask=is_output[:, None] & (rows >= 0)[None, :])


@triton.jit
def add_and_norm(source, index, partial, target, kept, kept_row, norm, out, eps, CAPACITY: tl.constexpr,
                 WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, IS_INDEXED: tl.constexpr,
                 HAS_TARGET: tl.constexpr, HAS_KEPT: tl.constexpr, HAS_NORM: tl.constexpr,
                 USES_PDL: tl.constexpr):  # fmt: skip
    """Grid (rows). x = source + the sum of partial [SPLITS, CAPACITY, WIDTH]; out = rms_norm(x) * norm.

    IS_INDEXED: row i is row index[i] of source and partial (an embedding table, or the last rows).
    HAS_TARGET: x is written to target. HAS_KEPT: and to row kept_row[i] of kept, unless that is negative."""
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    pdl_wait(USES_PDL)
    row = tl.program_id(0).to(tl.int64)
    from_row = row
    if IS_INDEXED:
        from_row = tl.load(index + row)
    value = tl.load(source + from_row * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    for split in tl.static_range(SPLITS):
        at = (split * CAPACITY + from_row) * WIDTH + columns
        value += tl.load(partial + at, mask=inside, other=0.0).to(tl.float32)
    if SPLITS > 0:
        value = value.to(source.dtype.element_ty).to(tl.float32)  # as the residual stream is stored
    if HAS_TARGET:
        tl.store(target + row * WIDTH + columns, value.to(target.dtype.element_ty), mask=inside)
    if HAS_KEPT:
        kept_at = tl.load(kept_row + row)
        tl.store(kept + kept_at * WIDTH + columns, value.to(kept.dtype.element_ty),
                 mask=inside & (kept_at + 0 * columns >= 0))  # fmt: skip
    if HAS_NORM:
        weight = tl.load(norm + columns, mask=inside, other=0.0).to(tl.float32)
        value *= tl.rsqrt(tl.sum(value * value) / WIDTH + eps)
        tl.store(out + row * WIDTH + columns, (value * weight).to(out.dtype.element_ty), mask=inside)
