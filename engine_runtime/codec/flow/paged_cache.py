"""Static keys and values of many flow streams in pages of one attention chunk, for graphs.

In: the starts of a packet of several streams, and their page tables. Out: for each stream the places of its
positions, and a mask over its bucket. The first `fixed` positions (the voice prompt) and a ring after them
are the same as in a `RingCache`; here a page table maps a slot of the ring to a place in the common buffer,
so that streams share the pages of the prompt and hold no more than they need. Used from one CUDA stream, in
the thread of its caller.
"""

from __future__ import annotations

import torch
from torch import Tensor


class PagedCache:
    """Keys and values of all layers that advance together. Implements what the Triton blocks take of a
    `RingCache`; batches have the streams inside and the halves of the guidance outside."""

    def __init__(self, shape: tuple[int, ...], fixed: int, chunk: int, capacity: int, like: Tensor) -> None:
        """`shape` is (layers, 2, halves, heads, rows of all pages, head_dim); a page has `chunk` rows, and a
        stream at most `capacity` of them."""
        self._fixed, self._chunk, self._capacity = fixed, chunk, capacity
        self._buffer = like.new_zeros(shape)  # zeros, because masked rows are still multiplied by zero
        self.bucket, self.streams = capacity, 1
        self.mask = like.new_zeros(0)
        self.slots = self.places = self.distance_of = torch.zeros(0, dtype=torch.int64, device=like.device)

    def entry(self, layer: int) -> Tensor:
        """All of a layer: [2, halves, H, rows, d]."""
        return self._buffer[layer]

    def place(self, start: Tensor, end: Tensor, table: Tensor, count: int, bucket: int) -> None:
        """Prepare places and masks of the positions [start, start + count) of each stream, of which those
        from `end` on are padding. start, end: int64 [streams]; table: pages [streams, bucket / chunk]."""
        self.bucket, self.streams, ring = bucket, len(start), self._capacity - self._fixed
        device, chunk = self._buffer.device, self._chunk
        start, end = start[:, None], end[:, None]
        queries = start + torch.arange(count, device=device)  # [streams, count]
        written = torch.where(
            queries < self._fixed, queries, self._fixed + torch.remainder(queries - self._fixed, ring)
        )
        self.slots = table.gather(1, written // chunk) * chunk + written % chunk
        slots = torch.arange(bucket, device=device)
        self.places = table[:, slots // chunk] * chunk + slots % chunk  # [streams, bucket]
        rounds = torch.div(start + count - 1 - slots, ring, rounding_mode="floor")
        keys = torch.where(slots < self._fixed, slots, slots + rounds * ring)  # position held by each slot
        is_filled = (slots < start + count) & (keys < end)
        chunks = torch.div(keys, chunk, rounding_mode="floor")[:, None]
        own = torch.div(queries, chunk, rounding_mode="floor")[:, :, None]
        is_seen = is_filled[:, None] & (chunks <= own)
        # a padding query has no valid key; unmask some, or its softmax is NaN
        is_seen |= (queries >= end)[:, :, None]
        self.mask = torch.zeros_like(is_seen, dtype=self._buffer.dtype).masked_fill_(~is_seen, float("-inf"))
        distance = (queries[:, :, None] - keys[:, None]).clamp(1 - chunk, bucket - 1)
        self.distance_of = bucket - 1 - distance

    def place_as(self, other: PagedCache) -> None:
        """Like `place`, with the places and masks of another cache of the same pages."""
        self.bucket, self.streams, self.mask = other.bucket, other.streams, other.mask
        self.slots, self.places, self.distance_of = other.slots, other.places, other.distance_of

    def host_pages(self, count: int) -> list[Tensor]:
        """Host memory for this many pages, a tensor each; pinned for a GPU, for asynchronous copies."""
        on_gpu = self._buffer.device.type == "cuda"
        shape = (count, *self._rows(0).shape)
        return list(torch.empty(shape, dtype=self._buffer.dtype, pin_memory=on_gpu))

    def take_out(self, page: int, kept: Tensor) -> None:
        """Copy this page to one of `host_pages`."""
        kept.copy_(self._rows(page).contiguous(), non_blocking=True)  # one transfer

    def put_back(self, page: int, kept: Tensor) -> None:
        """Write what `take_out` copied to this page."""
        self._rows(page).copy_(kept.to(self._buffer.device, non_blocking=True))

    def _rows(self, page: int) -> Tensor:
        return self._buffer.narrow(4, page * self._chunk, self._chunk)
