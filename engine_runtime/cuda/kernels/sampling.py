"""Samples an id from logits in two launches: the top scores of each vocabulary tile, then one id of those.
`take_fields` begins a step of several sequences with the ids that the step before it sampled.

In: logits [sequences, vocab] float32 and, for each sequence, the slots of executors/cuda/inputs.py or
batch_inputs.py. Out: one id each, by the rules of lm/sampler.py, in the result of executors/cuda/sampler.py,
whose plain torch is the reference implementation. No sort: a bisection finds the threshold of the top scores,
and only those are compared with each other.
"""

from __future__ import annotations

import triton
import triton.language as tl

MAX_CANDIDATES = tl.constexpr(64)
"""Number of top scores kept, per vocabulary tile and in the end: MAX_TOP_K of lm/step.py."""
RESULTS = tl.constexpr(5)
"""Numbers that a sequence has in the result."""


@triton.jit
def _ordered(scores):
    """float32 mapped to uint32 of the same order."""
    bits = scores.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.uint32, bitcast=True) ^ 0x80000000


@triton.jit
def _border(keys):
    """The largest threshold that at least MAX_CANDIDATES keys reach."""
    border = tl.zeros((), tl.uint32)
    for place in tl.static_range(32):
        higher = border | (1 << (31 - place))
        border = tl.where(tl.sum((keys >= higher).to(tl.int32)) >= MAX_CANDIDATES, higher, border)
    return border


@triton.jit
def _keep_highest(scores, ids, to_scores, to_ids):
    """Write the MAX_CANDIDATES highest scores and their ids, in the order of the ids, those equal to the
    threshold last."""
    keys = _ordered(scores)
    border = _border(keys)
    is_above, is_at = keys > border, keys == border
    above = tl.cumsum(is_above.to(tl.int32)) - 1
    at = tl.sum(is_above.to(tl.int32)) + tl.cumsum(is_at.to(tl.int32)) - 1
    place = tl.where(is_above, above, at)
    is_kept = is_above | (is_at & (at < MAX_CANDIDATES))
    tl.store(to_scores + place, scores, mask=is_kept)
    tl.store(to_ids + place, ids, mask=is_kept)


@triton.jit
def _penalized(logits, ids, seen, seen_set, seen_id, banned_from, eosp, bans_eosp, penalty,
               VOCAB: tl.constexpr, IS_AUDIO: tl.constexpr):  # fmt: skip
    """Logits of the ids (-inf beyond the vocabulary), and their scores; marks `seen_id` as seen."""
    sequence = tl.program_id(1)
    inside = ids < VOCAB
    plain = tl.load(logits + sequence.to(tl.int64) * VOCAB + ids, mask=inside, other=float("-inf"))
    new_id = tl.load(seen_id + sequence)
    seen += tl.load(seen_set + sequence) * VOCAB
    is_new = inside & (ids == new_id)
    is_seen = is_new | (tl.load(seen + ids, mask=inside, other=0) != 0)
    tl.store(seen + ids, is_new.to(seen.dtype.element_ty), mask=is_new)
    scores = plain
    if IS_AUDIO:
        is_held = (ids == tl.load(eosp + sequence)) & (tl.load(bans_eosp + sequence) != 0)
        scores = tl.where((ids >= tl.load(banned_from + sequence)) | is_held, float("-inf"), scores)
    factor = tl.load(penalty + sequence).to(tl.float32)
    return plain, tl.where(is_seen, tl.where(scores < 0, scores * factor, scores / factor), scores)


@triton.jit
def best_of_tile(logits, seen, seen_set, seen_id, banned_from, eosp, bans_eosp, penalty, best, best_ids,
                 tops, top_ids, sums, VOCAB: tl.constexpr, VOCAB_TILE: tl.constexpr, IS_AUDIO: tl.constexpr,
                 DO_SAMPLE: tl.constexpr):  # fmt: skip
    """Grid (vocabulary tiles, sequences). seen [sets, VOCAB]; a sequence has set seen_set[sequence]. best,
    best_ids [sequences, tiles, MAX_CANDIDATES]: the highest scores (if DO_SAMPLE; otherwise the highest one,
    at index 0); tops, top_ids [sequences, tiles]: the highest raw logit; sums: of absolute logits."""
    first = tl.program_id(0) * VOCAB_TILE
    tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    ids = first + tl.arange(0, VOCAB_TILE)
    plain, scores = _penalized(logits, ids, seen, seen_set, seen_id, banned_from, eosp, bans_eosp,
                               penalty, VOCAB, IS_AUDIO)  # fmt: skip
    top, top_at = tl.max(plain, axis=0, return_indices=True)
    tl.store(tops + tile, top)
    tl.store(top_ids + tile, first + top_at)
    tl.store(sums + tile, tl.sum(tl.where(ids < VOCAB, tl.abs(plain), 0.0)))
    if DO_SAMPLE:
        _keep_highest(scores, ids, best + tile * MAX_CANDIDATES, best_ids + tile * MAX_CANDIDATES)
    else:
        top, top_at = tl.max(scores, axis=0, return_indices=True)
        tl.store(best + tile * MAX_CANDIDATES, top)
        tl.store(best_ids + tile * MAX_CANDIDATES, first + top_at)


@triton.jit
def sample_one(best, best_ids, tops, top_ids, sums, last, last_ids, top_k, top_p, temperature, draw,
               result_row, result, ID: tl.constexpr, TOP: tl.constexpr, MAGNITUDE: tl.constexpr,
               NUM_TILES: tl.constexpr, TILES_BLOCK: tl.constexpr, DO_SAMPLE: tl.constexpr):  # fmt: skip
    """Grid (sequences). Writes the id, the id of the highest raw logit and the sum of absolute logits to row
    result_row[sequence] of `result` [rows, RESULTS] float64 at the indices ID, TOP (none if negative) and
    MAGNITUDE. last, last_ids [sequences, MAX_CANDIDATES]: buffer for the candidates. TILES_BLOCK: NUM_TILES
    up to a power of two."""
    sequence = tl.program_id(0)
    best += sequence * (NUM_TILES * MAX_CANDIDATES)
    best_ids += sequence * (NUM_TILES * MAX_CANDIDATES)
    tops += sequence * NUM_TILES
    top_ids += sequence * NUM_TILES
    sums += sequence * NUM_TILES
    last += sequence * MAX_CANDIDATES
    last_ids += sequence * MAX_CANDIDATES
    result += tl.load(result_row + sequence) * RESULTS
    tiles = tl.arange(0, TILES_BLOCK)
    is_tile = tiles < NUM_TILES
    # Sequential and in float64, so that the sum is deterministic and loses no value.
    parts = tl.load(sums + tiles, mask=is_tile, other=0.0).to(tl.float64)
    tl.store(result + MAGNITUDE, tl.sum(parts))
    if TOP >= 0:
        high = tl.load(tops + tiles, mask=is_tile, other=float("-inf"))
        high_ids = tl.load(top_ids + tiles, mask=is_tile, other=0x7FFFFFFF)
        tl.store(result + TOP, tl.min(tl.where(high == tl.max(high), high_ids, 0x7FFFFFFF)).to(tl.float64))
    if not DO_SAMPLE:
        scores = tl.load(best + tiles * MAX_CANDIDATES, mask=is_tile, other=float("-inf"))
        ids = tl.load(best_ids + tiles * MAX_CANDIDATES, mask=is_tile, other=0x7FFFFFFF)
        tl.store(result + ID, tl.min(tl.where(scores == tl.max(scores), ids, 0x7FFFFFFF)).to(tl.float64))
        return
    places = tl.arange(0, TILES_BLOCK * MAX_CANDIDATES)
    is_place = places < NUM_TILES * MAX_CANDIDATES
    scores = tl.load(best + places, mask=is_place, other=float("-inf"))
    ids = tl.load(best_ids + places, mask=is_place, other=0x7FFFFFFF)
    _keep_highest(scores, ids, last, last_ids)
    tl.debug_barrier()
    some = tl.arange(0, MAX_CANDIDATES)
    values, ids = tl.load(last + some), tl.load(last_ids + some)
    values = values / tl.load(temperature + sequence).to(tl.float32)
    # before[i, j]: candidate i comes before candidate j
    higher, level = values[:, None] > values[None, :], values[:, None] == values[None, :]
    before = higher | (level & (ids[:, None] < ids[None, :]))
    rank = tl.sum(before.to(tl.int32), axis=0)
    wanted = tl.minimum(tl.maximum(tl.load(top_k + sequence), 1), MAX_CANDIDATES).to(tl.int32) - 1
    kth = tl.max(tl.where(rank == wanted, values, float("-inf")))
    values = tl.where(values < kth, float("-inf"), values)
    weights = tl.exp(values - tl.max(values))
    probabilities = weights / tl.sum(weights)
    mass_before = tl.sum(tl.where(before, probabilities[:, None], 0.0), axis=0)
    is_kept = (mass_before < tl.load(top_p + sequence).to(tl.float32)) & (values > float("-inf"))
    kept = tl.where(is_kept, weights, 0.0).to(tl.float64)
    kept = kept / tl.sum(kept)
    up_to = tl.sum(tl.where(ids[:, None] <= ids[None, :], kept[:, None], 0.0), axis=0)
    # NOTE: rounding may leave the last sum slightly below 1; a larger uniform sample selects the last kept
    # id.
    highest = tl.max(tl.where(is_kept, ids, -1))
    passed = tl.min(tl.where(is_kept & (up_to > tl.load(draw + sequence)), ids, 0x7FFFFFFF))
    tl.store(result + ID, tl.minimum(passed, highest).to(tl.float64))


@triton.jit
def take_fields(host, device, result, text_vocab, ROWS: tl.constexpr, TOKEN: tl.constexpr,
                FIRST_PLACE: tl.constexpr, LAST_PLACE: tl.constexpr, FOLLOWS: tl.constexpr,
                SEEN_AUDIO: tl.constexpr, EOSP: tl.constexpr, AUDIO: tl.constexpr,
                MAGNITUDE: tl.constexpr):  # fmt: skip
    """Grid (fields). Copies the fields of a step, [fields, ROWS] int64 in pinned host memory, to `device`.

    A row that follows an earlier one gets the audio id at AUDIO of row `host[FOLLOWS]` (-1: none) of `result`
    [rows, RESULTS] float64: as TOKEN, after `text_vocab` text ids, and as SEEN_AUDIO. If that id is its EOSP,
    or the number at MAGNITUDE is not finite, it becomes padding: the fields FIRST_PLACE to LAST_PLACE and
    SEEN_AUDIO are -1, TOKEN is 0."""
    field, rows = tl.program_id(0), tl.arange(0, ROWS)
    value = tl.load(host + field * ROWS + rows, volatile=True)
    is_place = (field >= FIRST_PLACE) & (field <= LAST_PLACE)
    if is_place | (field == TOKEN) | (field == SEEN_AUDIO):
        follows = tl.load(host + FOLLOWS * ROWS + rows, volatile=True)
        eosp = tl.load(host + EOSP * ROWS + rows, volatile=True)
        is_following = follows >= 0
        # Of an earlier step, whose kernels have ended.
        results = result + follows * RESULTS
        code = tl.load(results + AUDIO, mask=is_following, other=0.0, volatile=True).to(tl.int64)
        magnitude = tl.load(results + MAGNITUDE, mask=is_following, other=0.0, volatile=True)
        goes_on = (code != eosp) & (tl.abs(magnitude) < float("inf"))
        sampled = code + tl.where(field == TOKEN, text_vocab, 0)
        following = tl.where(goes_on, tl.where(is_place, value, sampled), tl.where(field == TOKEN, 0, -1))
        value = tl.where(is_following, following, value)
    tl.store(device + field * ROWS + rows, value)
