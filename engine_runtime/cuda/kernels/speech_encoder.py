"""Kernels of the speech encoder between its matrix products, which are three bf16 products in one.

In: float32 sums of a product [rows, outputs]. Out: the input of the next one as two bf16 parts, x = high +
low, stored as columns [high | low | high]. With a weight stored as [high | high | low], one product over
these columns is x @ weight.T without the product of both low parts: 16 bits of each value take part, and sums
are float32 (Henry, Tang, Heinecke 2019: "Leveraging the bfloat16 artificial intelligence datatype for
higher-precision computations"). Tensor cores do that several times as fast as float32 products run elsewhere.

Numbers of rows are in the grid, lengths of the streams on the device: a captured call fits streams of any
length.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine_runtime.cuda.kernels.attention import _attend_tile
from engine_runtime.cuda.kernels.flow_estimator import _normed
from engine_runtime.cuda.kernels.pdl import pdl_wait


@triton.jit
def _store_split(out, rows, columns, value, mask, WIDTH: tl.constexpr):
    """value [rows, columns] as two bf16 parts, in rows of out [.., 3 WIDTH]."""
    high = value.to(tl.bfloat16)
    low = (value - high.to(tl.float32)).to(tl.bfloat16)
    at = out + rows.to(tl.int64)[:, None] * (3 * WIDTH) + columns[None, :]
    tl.store(at, high, mask=mask)
    tl.store(at + WIDTH, low, mask=mask)
    tl.store(at + 2 * WIDTH, high, mask=mask)


@triton.jit
def add_norm_split(x, sums, bias, norm, norm_bias, out, eps, WIDTH: tl.constexpr, TILE: tl.constexpr,
                   HAS_SUMS: tl.constexpr, USES_PDL: tl.constexpr):  # fmt: skip
    """Grid (rows). If HAS_SUMS, x [.., WIDTH] += sums [.., WIDTH] + bias; out = parts of layer_norm(x)."""
    columns, rows = tl.arange(0, TILE), tl.program_id(0) + tl.arange(0, 1)
    inside = columns < WIDTH
    at = rows[:, None] * WIDTH + columns[None, :]
    pdl_wait(USES_PDL)
    value = tl.load(x + at, mask=inside[None, :], other=0.0)
    if HAS_SUMS:
        value += tl.load(sums + at, mask=inside[None, :], other=0.0)
        value += tl.load(bias + columns, mask=inside, other=0.0)[None, :]
        tl.store(x + at, value, mask=inside[None, :])
    value = _normed(value, norm, norm_bias, columns, inside, eps, WIDTH)
    _store_split(out, rows, columns, value, inside[None, :], WIDTH)


@triton.jit
def gelu_split(sums, bias, out, WIDTH: tl.constexpr, TILE: tl.constexpr, USES_PDL: tl.constexpr):  # fmt: skip
    """Grid (rows, tiles of columns). out = the parts of gelu(sums [.., WIDTH] + bias)."""
    columns, rows = tl.program_id(1) * TILE + tl.arange(0, TILE), tl.program_id(0) + tl.arange(0, 1)
    inside = columns < WIDTH
    offset = tl.load(bias + columns, mask=inside, other=0.0)[None, :]
    pdl_wait(USES_PDL)
    value = tl.load(sums + rows[:, None] * WIDTH + columns[None, :], mask=inside[None, :], other=0.0) + offset
    value = 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476))
    _store_split(out, rows, columns, value, inside[None, :], WIDTH)


@triton.jit
def _head_rows(sums, bias, rows, is_row, head, part, HEADS: tl.constexpr, DIM: tl.constexpr,
               DIM_TILE: tl.constexpr):  # fmt: skip
    """float32 [rows, DIM_TILE]: one head of q, k or v (part 0, 1, 2) of rows of sums [.., 3 HEADS DIM]."""
    dims = tl.arange(0, DIM_TILE)
    columns = (part * HEADS + head) * DIM + dims
    offset = tl.load(bias + columns, mask=dims < DIM, other=0.0)[None, :]
    at = rows[:, None] * (3 * HEADS * DIM) + columns[None, :]
    value = tl.load(sums + at, mask=is_row[:, None] & (dims < DIM)[None, :], other=0.0)
    return tl.where(is_row[:, None], value + offset, 0.0)


@triton.jit
def attend_slots(sums, bias, keys, values, numbers, out, softmax_scale, NEW: tl.constexpr,
                 POSITIONS: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, DIM_TILE: tl.constexpr,
                 ROWS: tl.constexpr, KEYS: tl.constexpr, USES_PDL: tl.constexpr):  # fmt: skip
    """Grid (HEADS, streams, tiles of ROWS new positions). Causal attention of NEW positions of each stream to
    those in its slot and among themselves; writes their keys and values to the slot.

    sums [streams * NEW, 3 HEADS DIM]: q, k, v without bias. keys, values [slots, HEADS, POSITIONS, DIM].
    numbers [streams, 2] int64: slot and length of each. out: the parts of [streams * NEW, HEADS DIM]."""
    head, stream = tl.program_id(0), tl.program_id(1)
    slot = tl.load(numbers + 2 * stream)
    length = tl.load(numbers + 2 * stream + 1).to(tl.int32)
    dims = tl.arange(0, DIM_TILE)
    is_dim = (dims < DIM)[None, :]
    from_slot = (slot * HEADS + head) * POSITIONS * DIM
    mine = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    is_mine = mine < NEW
    first_row = stream * NEW
    pdl_wait(USES_PDL)
    q = _head_rows(sums, bias, first_row + mine, is_mine, head, 0, HEADS, DIM, DIM_TILE)
    to = from_slot + (length + mine)[:, None] * DIM + dims[None, :]
    is_written = is_mine[:, None] & is_dim
    my_k = _head_rows(sums, bias, first_row + mine, is_mine, head, 1, HEADS, DIM, DIM_TILE)
    tl.store(keys + to, my_k, mask=is_written)
    my_v = _head_rows(sums, bias, first_row + mine, is_mine, head, 2, HEADS, DIM, DIM_TILE)
    tl.store(values + to, my_v, mask=is_written)
    top = tl.full((ROWS,), -1e30, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    result = tl.zeros((ROWS, DIM_TILE), tl.float32)
    for start in range(0, length, KEYS):
        positions = start + tl.arange(0, KEYS)
        is_past = positions < length
        at = from_slot + positions[:, None] * DIM + dims[None, :]
        k = tl.load(keys + at, mask=is_past[:, None] & is_dim, other=0.0)
        v = tl.load(values + at, mask=is_past[:, None] & is_dim, other=0.0)
        top, total, result = _attend_tile(
            q, k, v, is_past[None, :], top, total, result, softmax_scale, "tf32x3"
        )
    # The new positions come from the sums: what other programs write to the slot is not visible yet.
    for start in range(0, tl.minimum((tl.program_id(2) + 1) * ROWS, NEW), ROWS):
        added = start + tl.arange(0, ROWS)
        new_k = _head_rows(sums, bias, first_row + added, added < NEW, head, 1, HEADS, DIM, DIM_TILE)
        new_v = _head_rows(sums, bias, first_row + added, added < NEW, head, 2, HEADS, DIM, DIM_TILE)
        is_seen = added[None, :] <= mine[:, None]
        top, total, result = _attend_tile(
            q, new_k, new_v, is_seen, top, total, result, softmax_scale, "tf32x3"
        )
    result /= total[:, None]
    _store_split(out, first_row + mine, head * DIM + dims, result, is_written, HEADS * DIM)
