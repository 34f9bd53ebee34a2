"""Attention of the rows of several sequences over the paged pool: decode rows, and short prefills beside
them.

In: q, k and v of all rows as partial sums of the projection. Out: K and V in the pool, and the heads'
outputs. Consecutive rows of a sequence form groups of at most GROUP_ROWS; a program attends with the rows of
one group and the query heads of one K/V head over one partition of SPLIT_ROWS cached rows, and the last
program of a group and head combines its partitions. The size of a partition depends on the number of rows of
the step alone, so that a row's output does not depend on what the other sequences are.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine_runtime.cuda.kernels.attention import (
    _attend_tile,
    _combined,
    _norm_and_rope,
    _tile_of,
    to_stored,
)
from engine_runtime.cuda.kernels.pdl import pdl_wait


@triton.jit
def _head_of(partial, at, row_width, CAPACITY: tl.constexpr, SPLITS: tl.constexpr):
    """The sum of the partial sums at the offsets `at` of one row; `row_width` is that of all rows of a
    split."""
    value = tl.load(partial + at)
    for split in tl.static_range(SPLITS - 1):
        value += tl.load(partial + (split + 1) * row_width + at)
    return value


@triton.jit(do_not_specialize=["layer_offset"])
def rope_and_write_rows(qkv, q_norm, k_norm, cos, sin, pool, table, q_out, positions, sequences, layer_offset,
                        eps, CAPACITY: tl.constexpr, MAX_BLOCKS: tl.constexpr, SPLITS: tl.constexpr,
                        HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, GROUP: tl.constexpr,
                        GROUP_TILE: tl.constexpr, TOKENS: tl.constexpr, USES_PDL: tl.constexpr):  # fmt: skip
    """Grid (rows, KV_HEADS). qkv [SPLITS, CAPACITY, (HEADS + 2 KV_HEADS) * DIM] float32 -> q_out [rows,
    HEADS, DIM] normalized (unless q_norm and k_norm are None) and with RoPE, k and v in the pool. table [..,
    MAX_BLOCKS], a row for each sequence. A row at a position below 0 is not run."""
    pdl_wait(USES_PDL)
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions + row)
    if position < 0:
        return
    dims = tl.arange(0, DIM)
    across = (dims + DIM // 2) % DIM
    members = tl.arange(0, GROUP_TILE)
    # A program repeats the last head where the group is no power of two.
    heads = head * GROUP + tl.minimum(members, GROUP - 1)
    WIDTH: tl.constexpr = (HEADS + 2 * KV_HEADS) * DIM
    all_rows = CAPACITY * WIDTH
    from_row = row * WIDTH
    at = from_row + heads[:, None] * DIM
    plain = _head_of(qkv, at + dims[None, :], all_rows, CAPACITY, SPLITS)
    other = _head_of(qkv, at + across[None, :], all_rows, CAPACITY, SPLITS)
    at_k = from_row + (HEADS + head) * DIM + tl.zeros((1, 1), tl.int32)
    plain_k = _head_of(qkv, at_k + dims[None, :], all_rows, CAPACITY, SPLITS)
    other_k = _head_of(qkv, at_k + across[None, :], all_rows, CAPACITY, SPLITS)
    v = _head_of(qkv, at_k + KV_HEADS * DIM + dims[None, :], all_rows, CAPACITY, SPLITS)
    cosine = tl.load(cos + position * DIM + dims).to(tl.float32)[None, :]
    sine = tl.load(sin + position * DIM + dims).to(tl.float32)[None, :]
    q = _norm_and_rope(plain, other, q_norm, cosine, sine, eps, DIM)
    k = _norm_and_rope(plain_k, other_k, k_norm, cosine, sine, eps, DIM)
    q_at = (row * HEADS + heads)[:, None] * DIM + dims[None, :]
    tl.store(
        q_out + q_at, q.to(q_out.dtype.element_ty), mask=(members < GROUP)[:, None] & (dims >= 0)[None, :]
    )
    sequence = tl.load(sequences + row)
    block = tl.load(table + sequence * MAX_BLOCKS + position // TOKENS).to(tl.int64) + layer_offset
    place = pool + ((block * KV_HEADS + head) * TOKENS + position % TOKENS) * DIM + dims[None, :]
    model_type: tl.constexpr = q_out.dtype.element_ty
    tl.store(place, to_stored(k.to(model_type), pool.dtype.element_ty))
    tl.store(place + KV_HEADS * TOKENS * DIM, to_stored(v.to(model_type), pool.dtype.element_ty))


@triton.jit(do_not_specialize=["layer_offset"])
def attend_groups(q, pool, table, positions, sequences, group_rows, group_counts, partial, tops, totals,
                  arrived, out, layer_offset, softmax_scale, CAPACITY: tl.constexpr,
                  MAX_BLOCKS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
                  GROUP: tl.constexpr, GROUP_TILE: tl.constexpr, GROUP_ROWS: tl.constexpr,
                  TOKENS: tl.constexpr, TILE: tl.constexpr, SPLIT_ROWS: tl.constexpr,
                  MAX_SPLITS: tl.constexpr, STAGES: tl.constexpr, USES_PDL: tl.constexpr):  # fmt: skip
    """Grid (KV_HEADS, groups, splits). Group g holds group_counts[g] rows from row group_rows[g] on; their K
    and V are in the pool. partial [MAX_SPLITS, CAPACITY, HEADS, DIM], tops and totals [MAX_SPLITS, CAPACITY,
    HEADS] float32, arrived [groups, KV_HEADS] int32 (zeros, and zeros again afterwards). out [CAPACITY,
    HEADS, DIM]."""
    head, group, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    # These are inputs of the step, which the kernel before this one does not write.
    first_row = tl.load(group_rows + group).to(tl.int32)
    count = tl.load(group_counts + group).to(tl.int32)
    start_position = tl.load(positions + first_row).to(tl.int32)
    sequence = tl.load(sequences + first_row).to(tl.int32)
    num_seen = start_position + count
    first = split * SPLIT_ROWS
    pdl_wait(USES_PDL)
    if (start_position < 0) | (count == 0) | (first >= num_seen):
        return
    dims, queries = tl.arange(0, DIM), tl.arange(0, GROUP_ROWS * GROUP_TILE)
    offset, member = queries // GROUP_TILE, queries % GROUP_TILE
    is_valid = (offset < count) & (member < GROUP)
    row = first_row + tl.minimum(offset, count - 1)
    position = start_position + tl.minimum(offset, count - 1)
    at = row * HEADS + head * GROUP + tl.minimum(member, GROUP - 1)
    value = tl.load(q + at[:, None] * DIM + dims[None, :])
    from_table = table + sequence * MAX_BLOCKS
    top = tl.full((GROUP_ROWS * GROUP_TILE,), -1e30, tl.float32)
    total = tl.zeros((GROUP_ROWS * GROUP_TILE,), tl.float32)
    sums = tl.zeros((GROUP_ROWS * GROUP_TILE, DIM), tl.float32)
    for start in tl.range(first, tl.minimum(first + SPLIT_ROWS, num_seen), TILE, num_stages=STAGES):
        k, v, _ = _tile_of(pool, from_table, layer_offset, head, start, num_seen, KV_HEADS, DIM, TOKENS, TILE)
        is_seen = (start + tl.arange(0, TILE))[None, :] <= position[:, None]
        top, total, sums = _attend_tile(value, k, v, is_seen, top, total, sums, softmax_scale, "ieee")
    num_splits = tl.cdiv(num_seen, SPLIT_ROWS)
    if num_splits == 1:
        result = sums / total[:, None]
        tl.store(out + at[:, None] * DIM + dims[None, :], result.to(out.dtype.element_ty),
                 mask=is_valid[:, None])  # fmt: skip
        return
    mine = split * (CAPACITY * HEADS) + at
    tl.store(partial + mine[:, None] * DIM + dims[None, :], sums, mask=is_valid[:, None])
    tl.store(tops + mine, top, mask=is_valid)
    tl.store(totals + mine, total, mask=is_valid)
    tl.debug_barrier()  # this program's results are stored before it increments the arrival counter
    if tl.atomic_add(arrived + group * KV_HEADS + head, 1, sem="acq_rel") == num_splits - 1:
        splits = tl.arange(0, MAX_SPLITS)
        is_split = splits < num_splits
        for index in range(0, count * GROUP):
            one = (first_row + index // GROUP) * HEADS + head * GROUP + index % GROUP
            from_split = splits * (CAPACITY * HEADS) + one
            # Bypasses L1 (.cg), because other programs wrote them.
            split_tops = tl.load(tops + from_split, mask=is_split, other=-1e30, cache_modifier=".cg")
            split_totals = tl.load(totals + from_split, mask=is_split, other=0.0, cache_modifier=".cg")
            parts = tl.load(partial + from_split[:, None] * DIM + dims[None, :], mask=is_split[:, None],
                            other=0.0, cache_modifier=".cg")  # fmt: skip
            result = _combined(split_tops, split_totals, parts)
            tl.store(out + one * DIM + dims, result.to(out.dtype.element_ty))
        tl.store(arrived + group * KV_HEADS + head, 0)
