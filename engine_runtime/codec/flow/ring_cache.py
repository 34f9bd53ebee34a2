"""Static keys and values of the cached flow, for graphs: buffers are never moved or replaced.

In: the start of a packet, and its keys and values per layer. Out: the first `bucket` slots of a layer, and a
mask over them. The slots of the voice prompt (`fixed` positions) are never overwritten, so the next reply
starts from them without a copy; the slots after them form a ring: a longer stream attends to the prompt and
the most recent past. Until the ring wraps, the result equals that of the dynamic cache.

Buckets are used instead of a mask over the full capacity: the number of keys read, and thus the time, scales
with the length of the reply, at the cost of a capture per bucket. Used by one stream at a time, in the thread
of its caller.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


class RingCache:
    """Keys and values of all layers that advance together."""

    streams = 1

    def __init__(
        self, shape: tuple[int, ...], fixed: int, chunk: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`shape` is (layers, 2, batch, heads, capacity, head_dim); `chunk` the positions of an attention
        chunk."""
        self.capacity, self.bucket, self._fixed, self._chunk = shape[4], shape[4], fixed, chunk
        # zeros, because masked slots are still multiplied by zero
        self._buffer = torch.zeros(shape, dtype=dtype, device=device)
        self.mask = self._buffer.new_zeros(0)
        self._slots = self._columns = torch.zeros(0, dtype=torch.int64, device=device)

    @property
    def nbytes(self) -> int:
        """Memory of the buffers, in bytes."""
        return self._buffer.nbytes

    def take_prompt_of(self, other: RingCache) -> None:
        """Copy the voice prompt from another cache of the same size."""
        self._buffer[:, :, :, :, : self._fixed] = other._buffer[:, :, :, :, : other._fixed]

    def kept(self, start: int, end: int) -> Tensor:
        """A copy of the slots [start, end) of all layers."""
        return self._buffer[:, :, :, :, start:end].clone()

    def put_back(self, start: int, kept: Tensor) -> None:
        """Write what `kept` returned."""
        self._buffer[:, :, :, :, start : start + kept.shape[4]] = kept

    @property
    def slots(self) -> Tensor:
        """Slots of the packet's positions in a layer: int64 [count]."""
        return self._slots

    def entry(self, layer: int) -> Tensor:
        """All of a layer: [2, B, H, capacity, d]."""
        return self._buffer[layer]

    def place(self, start: Tensor, end: Tensor, count: int, bucket: int) -> None:
        """Prepare slots and mask for the positions [start, start + count), of which those from `end` on are
        padding. start, end: int64 scalars on the device; start + count exceeds a `bucket` only if the bucket
        is the capacity. No value is read back to the host."""
        self.bucket, ring = bucket, self.capacity - self._fixed
        device = self._buffer.device
        queries = start + torch.arange(count, device=device)
        self._slots = torch.where(
            queries < self._fixed, queries, self._fixed + torch.remainder(queries - self._fixed, ring)
        )
        slots = torch.arange(bucket, device=device)
        rounds = torch.div(start + count - 1 - slots, ring, rounding_mode="floor")
        keys = torch.where(slots < self._fixed, slots, slots + rounds * ring)  # position held by each slot
        is_filled = (slots < start + count) & (keys < end)
        chunks = torch.div(keys, self._chunk, rounding_mode="floor")
        is_seen = is_filled & (chunks <= torch.div(queries, self._chunk, rounding_mode="floor").unsqueeze(1))
        # a padding query has no valid key; unmask some, or its softmax is NaN
        is_seen |= (queries >= end).unsqueeze(1)
        self.mask = torch.zeros_like(is_seen, dtype=self._buffer.dtype).masked_fill_(~is_seen, float("-inf"))
        distance = (queries.unsqueeze(1) - keys).clamp(1 - self._chunk, bucket - 1)
        self._columns = bucket - 1 - distance

    def place_as(self, other: RingCache) -> None:
        """Like `place`, with the slots and mask of another cache of the same size."""
        self.bucket, self.mask = other.bucket, other.mask
        self._slots, self._columns = other._slots, other._columns

    def put(self, layer: int, kv: Tensor) -> Tensor:
        """Write kv [2, B, H, count, d] of a layer; returns its bucket [2, B, H, bucket, d]."""
        entry = self.entry(layer)
        entry.index_copy_(3, self._slots, kv)
        return entry[:, :, :, : self.bucket]

    @property
    def distance_of(self) -> Tensor:
        """Index of the distance between each query and slot: int64 [count, bucket], see `over_keys`."""
        return self._columns

    def attend(self, layer: int, query: Tensor, kv: Tensor) -> Tensor:
        """Put kv; attention of query [B, H, count, d] over the layer's bucket -> [B, H, count, d]."""
        keys, values = self.put(layer, kv)
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=self.mask)

    def past(self, first_layer: int, layers: int) -> Tensor:
        """The buckets of some layers [layers, 2, B, H, bucket, d], before the new keys and values are put."""
        return self._buffer[first_layer : first_layer + layers, :, :, :, : self.bucket]

    def mask_over_past_and_new(self) -> Tensor:
        """The mask [count, bucket + count] over `past` followed by the new positions: slots about to be
        overwritten are masked."""
        past = self.mask.index_fill(1, self._slots, float("-inf"))
        return torch.cat((past, self.mask[:, self._slots]), dim=1)

    def put_layers(self, first_layer: int, kv: Tensor) -> None:
        """Write kv [layers, 2, B, H, count, d] of some layers."""
        self._buffer[first_layer : first_layer + len(kv)].index_copy_(4, self._slots, kv)

    def over_keys(self, scores: Tensor) -> Tensor:
        """Scores over the distances bucket - 1 ... 1 - chunk [..., count, distances] -> over the slots [...,
        count, bucket]. The distance to a key of the prompt is clipped to the bucket size."""
        return scores.gather(-1, self._columns.expand(*scores.shape[:-1], self.bucket))

    def reserve(self, count: int) -> None:
        """No-op: the size is fixed."""

    def advance(self, count: int) -> None:
        """No-op: `place` sets the position."""
