"""Elementwise kernels between the matrix products of a prefill.

In: rows from a product. Out: the operations of executors/cuda/prefill.py's RowOperations, each in one pass
over memory. Accumulation is in float32. `take_slots` copies a step's inputs from host memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine_runtime.cuda.kernels.attention import to_stored
from engine_runtime.cuda.kernels.linear import BITS_UNIT, _as_float


@triton.jit(do_not_specialize=["layer_offset"])
def apply_rope_and_write_kv(qkv, q_norm, k_norm, cos, sin, pool, table, q_out, positions, layer_offset, eps,
                        HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
                        TOKENS: tl.constexpr, HEAD_TILE: tl.constexpr):  # fmt: skip
    """Grid (n). qkv [n, HEADS + 2 KV_HEADS, DIM] -> q_out [n, HEADS, DIM]; k and v to the pool. q_norm and
    k_norm are None in a network without them.

    A row at a position below 0 is padding: its k and v are not written."""
    row = tl.program_id(0).to(tl.int64)
    found = tl.load(positions + row)
    position = tl.maximum(found, 0)
    heads = tl.arange(0, HEAD_TILE)
    dims = tl.arange(0, DIM)
    across = (dims + DIM // 2) % DIM
    inside = (heads < HEADS + 2 * KV_HEADS)[:, None]
    is_q = (heads < HEADS)[:, None]
    is_v = (heads >= HEADS + KV_HEADS)[:, None]
    at = (row * (HEADS + 2 * KV_HEADS) + heads)[:, None] * DIM
    plain = tl.load(qkv + at + dims[None, :], mask=inside, other=0.0)
    other = tl.load(qkv + at + across[None, :], mask=inside, other=0.0).to(tl.float32)
    wide = plain.to(tl.float32)
    cosine = tl.load(cos + position * DIM + dims).to(tl.float32)[None, :]
    sine = tl.load(sin + position * DIM + dims).to(tl.float32)[None, :]
    if q_norm is not None:
        rms = tl.rsqrt(tl.sum(wide * wide, axis=1) / DIM + eps)[:, None]
        q_weight = tl.load(q_norm + dims).to(tl.float32)[None, :]
        k_weight = tl.load(k_norm + dims).to(tl.float32)[None, :]
        q_other = tl.load(q_norm + across).to(tl.float32)[None, :]
        k_other = tl.load(k_norm + across).to(tl.float32)[None, :]
        rotated = wide * tl.where(is_q, q_weight, k_weight) * cosine
        rotated = (rotated + other * tl.where(is_q, q_other, k_other) * sine) * rms
    else:
        rotated = wide * cosine + other * sine
    q_at = (row * HEADS + heads)[:, None] * DIM + dims[None, :]
    tl.store(q_out + q_at, rotated.to(q_out.dtype.element_ty), mask=is_q)
    block = tl.load(table + position // TOKENS).to(tl.int64) + layer_offset + tl.where(is_v, 1, 0)
    kv_head = tl.where(is_v, heads[:, None] - HEADS - KV_HEADS, heads[:, None] - HEADS)
    place = ((block * KV_HEADS + kv_head) * TOKENS + position % TOKENS) * DIM + dims[None, :]
    stored = to_stored(tl.where(is_v, wide, rotated), pool.dtype.element_ty)
    tl.store(pool + place, stored, mask=inside & ~is_q & (found + 0 * heads >= 0)[:, None])


@triton.jit
def gate_rows(gate_up, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (n, tiles of WIDTH). gate_up [n, 2 WIDTH] -> silu(gate) * up [n, WIDTH]."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    gate = tl.load(gate_up + row * 2 * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * WIDTH + WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + columns, (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty),
             mask=inside)  # fmt: skip


@triton.jit
def norm_rows(x, norm, out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (n). x [n, WIDTH] -> rms_norm(x) * norm."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    value = tl.load(x + row * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(norm + columns, mask=inside, other=0.0).to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value) / WIDTH + eps)
    tl.store(out + row * WIDTH + columns, (value * weight).to(out.dtype.element_ty), mask=inside)


@triton.jit
def fp8_rows(x, out, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (n). x [n, WIDTH] -> e4m3 of the same shape, and the scale of each row [n] float32."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    value = tl.load(x + row * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    unit = tl.maximum(tl.max(tl.abs(value)) / 448.0, 1e-12)
    tl.store(out + row * WIDTH + columns, to_stored(value / unit, out.dtype.element_ty), mask=inside)
    tl.store(scale + row, unit)


@triton.jit
def dense_rows(weight, scale, out, WIDTH: tl.constexpr, FP8_BITS: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (out, tiles of WIDTH). Dequantize fp8 or int8 weights [out, WIDTH] with a scale per row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    unit = tl.load(scale + row) * (BITS_UNIT if FP8_BITS else 1.0)
    value = _as_float(tl.load(weight + row * WIDTH + columns, mask=inside), FP8_BITS) * unit
    tl.store(out + row * WIDTH + columns, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def dense_rows_int4(weight, scale, out, WIDTH: tl.constexpr, NUM_GROUPS: tl.constexpr, GROUPS: tl.constexpr):
    """Grid (out, tiles of NUM_GROUPS). Dequantize int4 weights as packed by quantization.py."""
    row = tl.program_id(0).to(tl.int64)
    groups = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    is_group = (groups < NUM_GROUPS)[:, None]
    places = groups[:, None] * 64 + tl.arange(0, 64)[None, :]
    packed = tl.load(weight + row * (NUM_GROUPS * 64) + places, mask=is_group, other=0)
    unit = tl.load(scale + row * NUM_GROUPS + groups, mask=groups < NUM_GROUPS, other=0.0)
    unit = unit.to(tl.float32)[:, None]
    low_at = groups[:, None] * 128 + tl.arange(0, 64)[None, :]
    low = ((packed & 15).to(tl.float32) - 8.0) * unit
    high = ((packed >> 4).to(tl.float32) - 8.0) * unit
    tl.store(out + row * WIDTH + low_at, low.to(out.dtype.element_ty), mask=low_at < WIDTH)
    tl.store(out + row * WIDTH + low_at + 64, high.to(out.dtype.element_ty), mask=low_at + 64 < WIDTH)


@triton.jit
def take_slots(host, device, SLOTS: tl.constexpr):
    """Grid (1). host, device [SLOTS] int64; `host` is pinned host memory, which the host modifies."""
    slots = tl.arange(0, SLOTS)
    tl.store(device + slots, tl.load(host + slots, volatile=True))
