"""Keys and values of earlier chunks for the cached flow.

In: keys and values of one chunk per layer. Out: views of all kept positions. Used by one stream, in the
thread of its caller.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


class ChunkCache:
    """Keys and values of all layers that advance together; the capacity doubles as needed.

    Each `put` is one attention chunk, which attends to all kept positions. `limit` bounds the positions kept
    between chunks: older ones are dropped, which bounds time and memory of a long stream, but is no longer
    equal to full attention.
    """

    def __init__(
        self, shape: tuple[int, ...], limit: int | None, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`shape` is (layers, 2, batch, heads, first capacity, head_dim)."""
        self.length = 0
        self.limit = limit
        self._buffer = torch.empty(shape, dtype=dtype, device=device)

    def copy(self) -> ChunkCache:
        """An independent cache with the same content."""
        copy = object.__new__(ChunkCache)
        copy.length, copy.limit = self.length, self.limit
        copy._buffer = torch.empty_like(self._buffer)
        copy._buffer[..., : self.length, :] = self._buffer[..., : self.length, :]
        return copy

    def reserve(self, count: int) -> None:
        """Reserve capacity for `count` positions, dropping those beyond the limit."""
        if self.limit is not None and self.length > self.limit:
            kept = self._buffer[..., self.length - self.limit : self.length, :].clone()
            self._buffer[..., : self.limit, :] = kept
            self.length = self.limit
        capacity = self._buffer.shape[4]
        if self.length + count > capacity:
            shape = list(self._buffer.shape)
            shape[4] = max(2 * capacity, self.length + count)
            larger = self._buffer.new_empty(shape)
            larger[..., : self.length, :] = self._buffer[..., : self.length, :]
            self._buffer = larger

    def put(self, layer: int, kv: Tensor) -> Tensor:
        """Write kv [2, B, H, n, d] after the kept positions of a layer; returns all [2, B, H, length + n,
        d]."""
        end = self.length + kv.shape[3]
        entry = self._buffer[layer]
        entry[:, :, :, self.length : end] = kv
        return entry[:, :, :, :end]

    def attend(self, layer: int, query: Tensor, kv: Tensor) -> Tensor:
        """Put kv; attention of query [B, H, n, d] over all of the layer -> [B, H, n, d]."""
        keys, values = self.put(layer, kv)
        return F.scaled_dot_product_attention(query, keys, values)

    def advance(self, count: int) -> None:
        """Commit the `count` positions that were put in every layer."""
        self.length += count
