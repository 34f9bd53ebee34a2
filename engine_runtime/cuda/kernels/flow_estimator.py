"""Kernels of the flow's estimator, one for each section between two points that need every row of a packet.

In: rows [batch * count, channels], batch after batch, frames in order. Out: rows. Five kernels make a
transformer block (`project_rows`, `attend_rows`, `linear_add_rows`, `inner_rows`, `linear_add_rows`), three a
residual block (`conv_rows` twice, `skip_rows`), and `step_rows` ends an Euler step. A product of a few dozen
rows takes less time than a launch, so everything else (norms, activations, convolution state, cache writes,
residuals) is fused into the adjacent product, repeated in every program if necessary. Accumulation is in
float32.

Numbers of rows and keys are run-time arguments: packets of all sizes share the compiled kernels. Weights are
loaded before the preceding kernel has finished (see pdl.py).
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine_runtime.cuda.kernels.pdl import pdl_wait


@triton.jit
def _normed(value, norm, norm_bias, columns, is_column, eps, WIDTH: tl.constexpr):
    """Layer norm of float32 rows [rows, tile], zero outside of WIDTH and so in the result."""
    centred = tl.where(is_column[None, :], value - (tl.sum(value, axis=1) / WIDTH)[:, None], 0.0)
    spread = tl.rsqrt(tl.sum(centred * centred, axis=1) / WIDTH + eps)
    factor = tl.load(norm + columns, mask=is_column, other=0.0).to(tl.float32)
    offset = tl.load(norm_bias + columns, mask=is_column, other=0.0).to(tl.float32)
    return centred * spread[:, None] * factor[None, :] + offset[None, :]


@triton.jit
def _mish(x):
    """x tanh(log(1 + e^x)), with the hyperbolic tangent as a quotient of polynomials in e^x."""
    power = tl.exp(tl.minimum(x, 20.0))
    up = power * (power + 2.0)
    return x * (up / (up + 2.0))


@triton.jit
def _rows_of(x, rows, is_row, columns, is_column, WIDTH: tl.constexpr):
    """float32 [rows, columns] of x [.., WIDTH]."""
    at = rows[:, None] * WIDTH + columns[None, :]
    return tl.load(x + at, mask=is_row[:, None] & is_column[None, :], other=0.0).to(tl.float32)


@triton.jit
def _weight_tile(weight, outputs, is_output, columns, is_column, first, STRIDE: tl.constexpr):
    """weight[outputs, first + columns].T, weight [.., STRIDE]."""
    at = outputs[None, :] * STRIDE + first + columns[:, None]
    return tl.load(weight + at, mask=is_output[None, :] & is_column[:, None], other=0.0)


@triton.jit
def _product(value, tile):
    """value [rows, columns] @ tile [columns, outputs], float32."""
    return tl.dot(value.to(tile.dtype), tile, input_precision="ieee")


@triton.jit
def _vector(x, columns, is_column):
    """float32 [1, columns]."""
    return tl.load(x + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _tile_of(num_rows, OUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """This program's rows and outputs, and their masks."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    outputs = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    return rows, rows < num_rows, outputs, outputs < OUT


@triton.jit
def _put(total, bias, add, out, rows, is_row, outputs, is_output, OUT: tl.constexpr, HAS_BIAS: tl.constexpr,
         HAS_ADD: tl.constexpr):  # fmt: skip
    """out [.., OUT] = total + bias [OUT] + add [.., OUT]."""
    at = rows[:, None] * OUT + outputs[None, :]
    inside = is_row[:, None] & is_output[None, :]
    if HAS_BIAS:
        total += _vector(bias, outputs, is_output)
    if HAS_ADD:
        total += tl.load(add + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


# Without this, Triton would recompile for the divisibility of numbers that differ between packets.
@triton.jit(do_not_specialize=["num_rows", "count", "capacity", "streams"])
def project_rows(x, norm, norm_bias, weight, bias, slots, q_out, cache, num_rows, count, capacity,
                 streams, eps, IN: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr,
                 QUERIES: tl.constexpr, HAS_BIAS: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
                 COLUMNS: tl.constexpr, USES_PDL: tl.constexpr):  # fmt: skip
    """Grid (row tiles, tiles of all outputs). layer_norm(x) @ weight.T + bias, weight [(QUERIES + 2) HEADS
    DIM, IN]: queries to q_out [QUERIES, num_rows, HEADS DIM], keys and values to cache [2, batch / streams,
    HEADS, capacity, DIM] at slots [streams, count]."""
    rows, is_row, outputs, is_output = _tile_of(num_rows, (QUERIES + 2) * HEADS * DIM, ROWS, COLUMNS)
    columns = tl.arange(0, TILE)
    is_column = columns < IN
    tile = _weight_tile(weight, outputs, is_output, columns, is_column, 0, IN)
    pdl_wait(USES_PDL)
    value = _rows_of(x, rows, is_row, columns, is_column, IN)
    value = _normed(value, norm, norm_bias, columns, is_column, eps, IN)
    result = _product(value, tile)
    if HAS_BIAS:
        result += _vector(bias, outputs, is_output)
    result = result.to(q_out.dtype.element_ty)
    part = (outputs // (HEADS * DIM))[None, :]
    inside = is_row[:, None] & is_output[None, :]
    to = (part * num_rows + rows[:, None]) * (HEADS * DIM) + (outputs % (HEADS * DIM))[None, :]
    tl.store(q_out + to, result, mask=inside & (part < QUERIES))
    each = streams * count
    slot = tl.load(slots + rows % each, mask=is_row, other=0).to(tl.int32)[:, None]
    head = ((outputs % (HEADS * DIM)) // DIM)[None, :]
    place = (
        ((part - QUERIES) * (num_rows // each) + (rows // each)[:, None]) * HEADS + head
    ) * capacity + slot
    tl.store(cache + place * DIM + (outputs % DIM)[None, :], result, mask=inside & (part >= QUERIES))


@triton.jit(do_not_specialize=["batches", "count", "bucket", "capacity", "num_distances", "streams"])
def attend_rows(q, cache, seen, distances, distance_of, places, out, batches, count, bucket, capacity,
                num_distances, streams, softmax_scale, HEADS: tl.constexpr, DIM: tl.constexpr,
                HAS_DISTANCES: tl.constexpr, IS_PAGED: tl.constexpr, DIM_TILE: tl.constexpr,
                ROWS: tl.constexpr, KEYS: tl.constexpr, USES_PDL: tl.constexpr):  # fmt: skip
    """Grid (batch * HEADS, row tiles of count). q and out [batch * count, HEADS DIM]; cache as above, of
    which the first `bucket` slots are read or, if IS_PAGED, the rows places [streams, bucket]; seen [streams,
    count, bucket] is added to the scores, and so is distances [batch * HEADS, count, num_distances] at the
    indices distance_of [streams, count, bucket]."""
    batch, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, DIM_TILE)
    is_row, is_dim = rows < count, dims < DIM
    at = ((batch * count + rows) * HEADS + head)[:, None] * DIM + dims[None, :]
    inside = is_row[:, None] & is_dim[None, :]
    pdl_wait(USES_PDL)
    query = tl.load(q + at, mask=inside, other=0.0)
    stream = batch % streams
    keys_at = cache + (batch // streams * HEADS + head) * capacity * DIM
    values_at = keys_at + batches // streams * HEADS * capacity * DIM
    in_bucket = (stream * count + rows)[:, None] * bucket
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, DIM_TILE), tl.float32)
    for start in range(0, bucket, KEYS):
        slots = start + tl.arange(0, KEYS)
        is_slot = slots < bucket
        source = slots
        if IS_PAGED:
            source = tl.load(places + stream * bucket + slots, mask=is_slot, other=0).to(tl.int32)
        place = source[:, None] * DIM + dims[None, :]
        is_there = is_slot[:, None] & is_dim[None, :]
        key = tl.load(keys_at + place, mask=is_there, other=0.0)
        value = tl.load(values_at + place, mask=is_there, other=0.0)
        bias = tl.load(seen + in_bucket + slots[None, :],
                       mask=is_row[:, None] & is_slot[None, :], other=float("-inf"))  # fmt: skip
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * softmax_scale + bias.to(tl.float32)
        if HAS_DISTANCES:
            known = is_row[:, None] & is_slot[None, :]
            far = tl.load(distance_of + in_bucket + slots[None, :], mask=known, other=0)
            from_row = distances + (tl.program_id(0) * count + rows)[:, None] * num_distances
            scores += tl.load(from_row + far, mask=known, other=0.0).to(tl.float32)
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)  # no valid key so far
        shrink = tl.exp(top - base)
        shares = tl.exp(scores - base[:, None])
        total = total * shrink + tl.sum(shares, axis=1)
        sums = sums * shrink[:, None] + tl.dot(shares.to(value.dtype), value, input_precision="ieee")
        top = new_top
    result = sums / tl.where(is_row, total, 1.0)[:, None]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def linear_add_rows(x, weight, bias, residual, out, num_rows, IN: tl.constexpr, OUT: tl.constexpr,
                    BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
                    USES_PDL: tl.constexpr):  # fmt: skip
    """Grid (row tiles, tiles of OUT). out = residual + x [.., IN] @ weight.T + bias; out may be residual."""
    rows, is_row, outputs, is_output = _tile_of(num_rows, OUT, ROWS, COLUMNS)
    inside = is_row[:, None] & is_output[None, :]
    at = rows[:, None] * OUT + outputs[None, :]
    columns = tl.arange(0, BLOCK)
    if BLOCK >= IN:
        tile = _weight_tile(weight, outputs, is_output, columns, columns < IN, 0, IN)
    total = _vector(bias, outputs, is_output)
    pdl_wait(USES_PDL)
    total += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    if BLOCK >= IN:
        total += _product(_rows_of(x, rows, is_row, columns, columns < IN, IN), tile)
    else:
        for start in range(0, IN, BLOCK):
            is_column = start + columns < IN
            value = tl.load(x + rows[:, None] * IN + start + columns[None, :],
                            mask=is_row[:, None] & is_column[None, :], other=0.0)  # fmt: skip
            total += _product(value, _weight_tile(weight, outputs, is_output, columns, is_column, start, IN))
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def inner_rows(x, norm, norm_bias, weight, bias, out, num_rows, eps, IN: tl.constexpr, OUT: tl.constexpr,
               IS_GELU: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
               COLUMNS: tl.constexpr, USES_PDL: tl.constexpr):  # fmt: skip
    """Grid (row tiles, tiles of OUT). Exact GELU, or SiLU, of layer_norm(x) @ weight.T + bias."""
    rows, is_row, outputs, is_output = _tile_of(num_rows, OUT, ROWS, COLUMNS)
    columns = tl.arange(0, TILE)
    is_column = columns < IN
    tile = _weight_tile(weight, outputs, is_output, columns, is_column, 0, IN)
    pdl_wait(USES_PDL)
    value = _rows_of(x, rows, is_row, columns, is_column, IN)
    value = _normed(value, norm, norm_bias, columns, is_column, eps, IN)
    result = _product(value, tile)
    result += _vector(bias, outputs, is_output)
    if IS_GELU:
        result = 0.5 * result * (1.0 + tl.erf(result * 0.7071067811865476))
    else:
        result = result / (1.0 + tl.exp(-result))
    at = rows[:, None] * OUT + outputs[None, :]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=is_row[:, None] & is_output[None, :])


@triton.jit(do_not_specialize=["num_rows", "count", "streams"])
def conv_rows(x, other, past, new_past, norm, norm_bias, time, weight, bias, add, out, num_rows, count,
              streams, eps, IN: tl.constexpr, PARTS: tl.constexpr, OUT: tl.constexpr, TAPS: tl.constexpr,
              IS_SHARED: tl.constexpr, HAS_NORM: tl.constexpr, HAS_BIAS: tl.constexpr,
              HAS_ADD: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
              COLUMNS: tl.constexpr, USES_PDL: tl.constexpr):  # fmt: skip
    """Grid (row tiles, tiles of OUT). Causal convolution of the channels of x, then (PARTS 2) of other; past
    [batch, TAPS - 1, PARTS IN] are the rows before the first, new_past those before the next packet.

    HAS_NORM: the rows are mish(layer_norm(x)) + time. IS_SHARED: x and past have the rows of the first
    `streams` of the batch, which the others share. bias [OUT], add [num_rows, OUT]."""
    rows, is_row, outputs, is_output = _tile_of(num_rows, OUT, ROWS, COLUMNS)
    columns = tl.arange(0, TILE)
    is_column = columns < IN
    frames, batch = rows % count, rows // count
    if IS_SHARED:
        sources, pasts, keeps = rows % (streams * count), batch % streams, batch < streams
    else:
        sources, pasts, keeps = rows, batch, batch >= 0
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    # prefetch each tile of the weights before the previous one is used
    tile = _weight_tile(weight, outputs, is_output, columns, is_column, 0, TAPS * PARTS * IN)
    pdl_wait(USES_PDL)
    for tap in tl.static_range(TAPS):
        back = TAPS - 1 - tap
        is_past = frames < back
        for part in tl.static_range(PARTS):
            source = x if part == 0 else other
            value = _rows_of(source, sources - back, is_row & ~is_past, columns, is_column, IN)
            now = tile
            if tap + 1 < TAPS or part + 1 < PARTS:
                tile = _weight_tile(weight, outputs, is_output, columns, is_column,
                               (tap * PARTS + part + 1) * IN, TAPS * PARTS * IN)  # fmt: skip
            if HAS_NORM:
                value = _mish(_normed(value, norm, norm_bias, columns, is_column, eps, IN))
                value += _vector(time, columns, is_column)
            if back > 0:
                kept = (pasts * (TAPS - 1) + frames + tap) * PARTS + part
                old = _rows_of(past, kept, is_row & is_past, columns, is_column, IN)
                value = tl.where(is_past[:, None], old, value)
            elif tl.program_id(1) == 0:
                last = is_row & keeps & (frames >= count - (TAPS - 1))
                to = (pasts * (TAPS - 1) + frames - (count - (TAPS - 1))) * PARTS + part
                is_kept = last[:, None] & is_column[None, :]
                to_row = new_past + to[:, None] * IN
                tl.store(to_row + columns[None, :], value.to(new_past.dtype.element_ty), mask=is_kept)
            total += _product(value, now)
    _put(total, bias, add, out, rows, is_row, outputs, is_output, OUT, HAS_BIAS, HAS_ADD)


@triton.jit(do_not_specialize=["num_rows", "count"])
def skip_rows(h, norm, norm_bias, x, other, weight, bias, add, out, num_rows, count, eps, IN: tl.constexpr,
              PARTS: tl.constexpr, OUT: tl.constexpr, IS_SHARED: tl.constexpr, HAS_BIAS: tl.constexpr,
              HAS_ADD: tl.constexpr, TILE: tl.constexpr, OUT_TILE: tl.constexpr, ROWS: tl.constexpr,
              COLUMNS: tl.constexpr, USES_PDL: tl.constexpr):  # fmt: skip
    """Grid (row tiles, tiles of OUT). The end of a residual block: mish(layer_norm(h)) + (x, other) @
    weight.T + bias [OUT] + add [num_rows, OUT]. Arguments as in `conv_rows`."""
    rows, is_row, outputs, is_output = _tile_of(num_rows, OUT, ROWS, COLUMNS)
    columns = tl.arange(0, TILE)
    is_column = columns < IN
    tile = _weight_tile(weight, outputs, is_output, columns, is_column, 0, PARTS * IN)
    pdl_wait(USES_PDL)
    all_outputs = tl.arange(0, OUT_TILE)
    row = _rows_of(h, rows, is_row, all_outputs, all_outputs < OUT, OUT)
    mean = tl.sum(row, axis=1) / OUT
    centred = tl.where((all_outputs < OUT)[None, :], row - mean[:, None], 0.0)
    spread = tl.rsqrt(tl.sum(centred * centred, axis=1) / OUT + eps)
    mine = (_rows_of(h, rows, is_row, outputs, is_output, OUT) - mean[:, None]) * spread[:, None]
    mine = mine * _vector(norm, outputs, is_output) + _vector(norm_bias, outputs, is_output)
    total = _mish(mine)
    sources = rows % count if IS_SHARED else rows
    for part in tl.static_range(PARTS):
        source = x if part == 0 else other
        value = _rows_of(source, sources, is_row, columns, is_column, IN)
        total += _product(value, tile)
        if part + 1 < PARTS:
            tile = _weight_tile(weight, outputs, is_output, columns, is_column, (part + 1) * IN, PARTS * IN)
    _put(total, bias, add, out, rows, is_row, outputs, is_output, OUT, HAS_BIAS, HAS_ADD)


@triton.jit(do_not_specialize=["count"])
def step_rows(h, norm, norm_bias, weight, bias, x, out, count, eps, guidance, dt, IN: tl.constexpr,
              OUT: tl.constexpr, BATCH: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
              COLUMNS: tl.constexpr, USES_PDL: tl.constexpr):  # fmt: skip
    """Grid (row tiles of count, tiles of OUT). out = x + dt * velocity, x float32 [count, OUT]; the velocity
    is mish(layer_norm(h)) @ weight.T + bias, of BATCH 2 v1 + guidance (v0 - v1)."""
    rows, is_row, outputs, is_output = _tile_of(count, OUT, ROWS, COLUMNS)
    columns = tl.arange(0, TILE)
    is_column = columns < IN
    tile = _weight_tile(weight, outputs, is_output, columns, is_column, 0, IN)
    pdl_wait(USES_PDL)
    velocity = tl.zeros((ROWS, COLUMNS), tl.float32)
    for batch in tl.static_range(BATCH):
        value = _rows_of(h, batch * count + rows, is_row, columns, is_column, IN)
        value = _mish(_normed(value, norm, norm_bias, columns, is_column, eps, IN))
        cfg_scale = guidance if batch == 0 else 1.0 - guidance
        if BATCH == 1:
            cfg_scale = 1.0
        velocity += cfg_scale * _product(value, tile)
    velocity += _vector(bias, outputs, is_output)  # the weights of both velocities sum to one
    at = rows[:, None] * OUT + outputs[None, :]
    inside = is_row[:, None] & is_output[None, :]
    tl.store(out + at, tl.load(x + at, mask=inside, other=0.0) + dt * velocity, mask=inside)
