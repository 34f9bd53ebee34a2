"""Split-KV attention of one row, or of a few, over the paged pool.

In: q, k and v of the row from the projection. Out: k (normalized where the network does so, with RoPE) and v
in the pool, and the heads' outputs. A program computes one K/V head with its query heads over one split-KV
partition; the last program to finish combines the partitions. So one kernel does everything between two
projections. For a few rows (`attend_small_batch`) q already has RoPE and k and v are in the pool; another
kernel combines the partitions.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _norm_and_rope(plain, other, norm, cos, sin, eps, DIM: tl.constexpr):
    """rms_norm(x) * norm (x itself where norm is None), then RoPE, of rows [.., DIM]; `other` holds them
    rotated by half.

    The sign of the rotation is in sin."""
    if norm is not None:
        dims = tl.arange(0, DIM)
        rms = tl.rsqrt(tl.sum(plain * plain, axis=1) / DIM + eps)
        weight = tl.load(norm + dims).to(tl.float32)[None, :]
        other_weight = tl.load(norm + (dims + DIM // 2) % DIM).to(tl.float32)[None, :]
        rotated = (plain * weight * cos + other * other_weight * sin) * rms[:, None]
    else:
        rotated = plain * cos + other * sin
    return rotated


@triton.jit
def to_stored(x, dtype: tl.constexpr):
    """x in the dtype of the pool; saturates for fp8."""
    if dtype == tl.float8e4nv:
        x = tl.minimum(tl.maximum(x.to(tl.float32), -448.0), 448.0)
    return x.to(dtype)


@triton.jit
def _as_dtype(x, dtype: tl.constexpr):
    """Convert via float32, because sm_89 cannot convert fp8 to bf16 directly."""
    if x.dtype == dtype:
        return x
    return x.to(tl.float32).to(dtype)


@triton.jit
def _tile_of(pool, table, layer_offset, head, first, last_row, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
             TOKENS: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    """K and V [TILE, DIM] of the rows from `first` on, and the mask of rows before `last_row` [TILE]."""
    rows = first + tl.arange(0, TILE)
    is_past = rows < last_row
    block = tl.load(table + rows // TOKENS, mask=is_past, other=0).to(tl.int64) + layer_offset
    row = (block * KV_HEADS + head) * TOKENS + rows % TOKENS
    place = pool + row[:, None] * DIM + tl.arange(0, DIM)[None, :]
    k = tl.load(place, mask=is_past[:, None], other=0.0)
    v_offset = KV_HEADS * TOKENS * DIM  # the V block follows the K block
    return k, tl.load(place + v_offset, mask=is_past[:, None], other=0.0), is_past


@triton.jit
def _attend_tile(q, k, v, is_seen, top, total, sums, softmax_scale, PRECISION: tl.constexpr):
    """Online softmax: add a tile of rows to the running maxima, sums of weights and weighted sums.

    is_seen [.., TILE]: mask per query. PRECISION: of float32 products, as for tl.dot."""
    keys, values = _as_dtype(k, q.dtype), _as_dtype(v, q.dtype)
    scores = tl.dot(q, tl.trans(keys), input_precision=PRECISION) * softmax_scale
    scores = tl.where(is_seen, scores, -1e30)
    new_top = tl.maximum(top, tl.max(scores, axis=1))
    rescale = tl.exp(top - new_top)
    weights = tl.where(is_seen, tl.exp(scores - new_top[:, None]), 0.0)
    total = total * rescale + tl.sum(weights, axis=1)
    sums = sums * rescale[:, None] + tl.dot(weights.to(q.dtype), values, input_precision=PRECISION)
    return new_top, total, sums


# Without this, Triton would recompile for the divisibility of every layer's offset.
@triton.jit(do_not_specialize=["layer_offset"])
def attend_row(qkv, q_norm, k_norm, cos, sin, pool, table, position, partial, tops, totals, arrived, out,
               layer_offset, eps, softmax_scale, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
               DIM: tl.constexpr, GROUP: tl.constexpr, GROUP_TILE: tl.constexpr, TOKENS: tl.constexpr,
               TILE: tl.constexpr, NUM_SPLITS: tl.constexpr, HAS_MORE: tl.constexpr):  # fmt: skip
    """Grid (KV_HEADS, NUM_SPLITS). qkv [(HEADS + 2 KV_HEADS) * DIM], pool [.., KV_HEADS, TOKENS, DIM] in
    blocks (K, then V), table: K block of each block of rows for layer 0. partial [NUM_SPLITS, HEADS, DIM],
    tops and totals [NUM_SPLITS, HEADS] float32, arrived [KV_HEADS] int32 (zeros, and zeros again afterwards).
    q_norm and k_norm are None in a network without them.
    HAS_MORE: partitions may be longer than a TILE. Short code matters: between other kernels the instructions
    are fetched again every time."""
    head, split = tl.program_id(0), tl.program_id(1)
    dims = tl.arange(0, DIM)
    across = (dims + DIM // 2) % DIM
    members = tl.arange(0, GROUP_TILE)
    heads = head * GROUP + members
    is_member = members < GROUP
    # All loads come first, so that the kernel waits for memory latency only once.
    plain_q = tl.load(qkv + heads[:, None] * DIM + dims[None, :], mask=is_member[:, None], other=0.0)
    other_q = tl.load(qkv + heads[:, None] * DIM + across[None, :], mask=is_member[:, None], other=0.0)
    last_row = tl.load(position)
    num_rows = last_row + 1
    split_rows = tl.cdiv(tl.cdiv(num_rows, NUM_SPLITS), TILE) * TILE
    num_splits = tl.cdiv(num_rows, split_rows)
    if split >= num_splits:
        return
    first = split * split_rows
    k, v, is_past = _tile_of(pool, table, layer_offset, head, first, last_row, KV_HEADS, DIM, TOKENS, TILE)
    cosine = tl.load(cos + last_row * DIM + dims).to(tl.float32)[None, :]
    sine = tl.load(sin + last_row * DIM + dims).to(tl.float32)[None, :]
    q = _norm_and_rope(plain_q.to(tl.float32), other_q.to(tl.float32), q_norm, cosine, sine, eps, DIM)
    q = q.to(qkv.dtype.element_ty)
    top = tl.full((GROUP_TILE,), -1e30, tl.float32)
    total = tl.zeros((GROUP_TILE,), tl.float32)
    sums = tl.zeros((GROUP_TILE, DIM), tl.float32)
    if split == num_splits - 1:
        # The new row: its K and V go to the pool, and are used here as stored.
        at = qkv + (HEADS + head) * DIM + tl.zeros((1, 1), tl.int32)
        plain_k = tl.load(at + dims[None, :]).to(tl.float32)
        other_k = tl.load(at + across[None, :]).to(tl.float32)
        new_k = _norm_and_rope(plain_k, other_k, k_norm, cosine, sine, eps, DIM).to(qkv.dtype.element_ty)
        new_k = to_stored(new_k, pool.dtype.element_ty)
        new_v = to_stored(tl.load(at + KV_HEADS * DIM + dims[None, :]), pool.dtype.element_ty)
        new_block = tl.load(table + last_row // TOKENS).to(tl.int64) + layer_offset
        new_place = ((new_block * KV_HEADS + head) * TOKENS + last_row % TOKENS) * DIM + dims[None, :]
        tl.store(pool + new_place, new_k)
        tl.store(pool + new_place + KV_HEADS * TOKENS * DIM, new_v)
        top = tl.sum(q.to(tl.float32) * new_k.to(tl.float32), axis=1) * softmax_scale
        total += 1.0
        sums += new_v.to(tl.float32)
    top, total, sums = _attend_tile(q, k, v, is_past[None, :], top, total, sums, softmax_scale, "ieee")
    if HAS_MORE:
        for start in range(first + TILE, tl.minimum(first + split_rows, last_row), TILE):
            k, v, is_past = _tile_of(pool, table, layer_offset, head, start, last_row, KV_HEADS, DIM, TOKENS,
                                    TILE)  # fmt: skip
            top, total, sums = _attend_tile(
                q, k, v, is_past[None, :], top, total, sums, softmax_scale, "ieee"
            )

    if num_splits == 1:
        result = sums / total[:, None]
        at_out = heads[:, None] * DIM + dims[None, :]
        tl.store(out + at_out, result.to(out.dtype.element_ty), mask=is_member[:, None])
        return
    mine = split * HEADS + heads
    tl.store(partial + mine[:, None] * DIM + dims[None, :], sums, mask=is_member[:, None])
    tl.store(tops + mine, top, mask=is_member)
    tl.store(totals + mine, total, mask=is_member)
    tl.debug_barrier()  # this program's results are stored before it increments the arrival counter
    if tl.atomic_add(arrived + head, 1, sem="acq_rel") == num_splits - 1:
        _combine_splits(partial, tops, totals, out, head, num_splits, HEADS, DIM, GROUP, NUM_SPLITS)
        tl.store(arrived + head, 0)


@triton.jit
def _combined(tops, totals, parts):
    """Combine the outputs of the partitions [partitions, DIM]; an empty partition has a total of 0."""
    weights = tl.exp(tops - tl.max(tops, axis=0))
    return tl.sum(parts * weights[:, None], axis=0) / tl.sum(totals * weights, axis=0)


@triton.jit
def _combine_splits(partial, tops, totals, out, head, num_splits, HEADS: tl.constexpr, DIM: tl.constexpr,
          GROUP: tl.constexpr, NUM_SPLITS: tl.constexpr):  # fmt: skip
    """Combine the partitions of one K/V head. Bypasses L1 (.cg), because other programs wrote them."""
    dims = tl.arange(0, DIM)
    splits = tl.arange(0, NUM_SPLITS)
    for member in range(GROUP):
        at = splits * HEADS + head * GROUP + member
        is_valid = splits < num_splits
        split_tops = tl.load(tops + at, mask=is_valid, other=-1e30, cache_modifier=".cg")
        split_totals = tl.load(totals + at, mask=is_valid, other=0.0, cache_modifier=".cg")
        parts = tl.load(partial + at[:, None] * DIM + dims[None, :], mask=is_valid[:, None], other=0.0,
                        cache_modifier=".cg")  # fmt: skip
        result = _combined(split_tops, split_totals, parts)
        tl.store(out + (head * GROUP + member) * DIM + dims, result.to(out.dtype.element_ty))


@triton.jit(do_not_specialize=["num_rows", "layer_offset"])
def attend_small_batch(q, pool, table, positions, partial, tops, totals, out, num_rows, layer_offset,
                    softmax_scale, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
                    GROUP: tl.constexpr, GROUP_TILE: tl.constexpr, TOKENS: tl.constexpr, TILE: tl.constexpr,
                    NUM_SPLITS: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """Grid (KV_HEADS, NUM_SPLITS, tiles of ROWS rows). q [num_rows, HEADS, DIM]; positions [num_rows] int64,
    below 0 for a padding row (its output is undefined). Each row attends to the rows of the pool up to
    itself. One partition: out [num_rows, HEADS, DIM]; otherwise partial [NUM_SPLITS, num_rows, HEADS, DIM],
    tops and totals [NUM_SPLITS, num_rows, HEADS] float32, for `join_small_batch`."""
    head, split = tl.program_id(0), tl.program_id(1)
    dims, queries = tl.arange(0, DIM), tl.arange(0, ROWS * GROUP_TILE)
    rows, member = tl.program_id(2) * ROWS + queries // GROUP_TILE, queries % GROUP_TILE
    is_valid = (rows < num_rows) & (member < GROUP)
    position = tl.maximum(tl.load(positions + rows, mask=is_valid, other=-1).to(tl.int32), 0)
    at = rows * HEADS + head * GROUP + member
    value = tl.load(q + at[:, None] * DIM + dims[None, :], mask=is_valid[:, None], other=0.0)
    num_seen = tl.max(position) + 1
    split_rows = tl.cdiv(tl.cdiv(num_seen, NUM_SPLITS), TILE) * TILE
    first = split * split_rows
    top = tl.full((ROWS * GROUP_TILE,), -1e30, tl.float32)
    total = tl.zeros((ROWS * GROUP_TILE,), tl.float32)
    sums = tl.zeros((ROWS * GROUP_TILE, DIM), tl.float32)
    for start in range(first, tl.minimum(first + split_rows, num_seen), TILE):
        k, v, _ = _tile_of(pool, table, layer_offset, head, start, num_seen, KV_HEADS, DIM, TOKENS, TILE)
        is_seen = (start + tl.arange(0, TILE))[None, :] <= position[:, None]
        top, total, sums = _attend_tile(value, k, v, is_seen, top, total, sums, softmax_scale, "ieee")
    if NUM_SPLITS == 1:
        result = sums / total[:, None]
        tl.store(
            out + at[:, None] * DIM + dims[None, :], result.to(out.dtype.element_ty), mask=is_valid[:, None]
        )
    else:
        mine = split * num_rows * HEADS + at
        tl.store(partial + mine[:, None] * DIM + dims[None, :], sums, mask=is_valid[:, None])
        tl.store(tops + mine, top, mask=is_valid)
        tl.store(totals + mine, total, mask=is_valid)


@triton.jit(do_not_specialize=["num_outputs"])
def join_small_batch(partial, tops, totals, out, num_outputs, DIM: tl.constexpr, NUM_SPLITS: tl.constexpr):
    """Grid (num_outputs): the rows' heads. Combines the partitions of `attend_small_batch`, which may be
    empty."""
    dims = tl.arange(0, DIM)
    at = tl.arange(0, NUM_SPLITS) * num_outputs + tl.program_id(0)
    parts = tl.load(partial + at[:, None] * DIM + dims[None, :])
    result = _combined(tl.load(tops + at), tl.load(totals + at), parts)
    tl.store(out + tl.program_id(0) * DIM + dims, result.to(out.dtype.element_ty))
