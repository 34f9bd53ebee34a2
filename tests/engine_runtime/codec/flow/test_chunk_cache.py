"""Chunk cache: kept, dropped and shared positions."""

from __future__ import annotations

import pytest
import torch

from engine_runtime.codec.flow.chunk_cache import ChunkCache


def make(capacity: int, limit: int | None = None) -> ChunkCache:
    """Two layers, batch 1, one head of width 3."""
    return ChunkCache((2, 2, 1, 1, capacity, 3), limit, torch.float32, torch.device("cpu"))


def chunk(value: float, count: int) -> torch.Tensor:
    return torch.full((2, 1, 1, count, 3), value)


def fill(cache: ChunkCache, values: list[float], count: int) -> torch.Tensor:
    """Put chunks of `count` positions into both layers; returns the keys of layer 1 after the last."""
    for value in values:
        cache.reserve(count)
        cache.put(0, chunk(-value, count))
        seen = cache.put(1, chunk(value, count))
        cache.advance(count)
    return seen[0, 0, 0, :, 0]


@pytest.mark.parametrize("capacity", [2, 5, 100])
def test_keeps_everything_in_order_whatever_the_first_capacity(capacity: int) -> None:
    assert fill(make(capacity), [1, 2, 3, 4], 3).tolist() == [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3


def test_limit_keeps_the_latest() -> None:
    cache = make(4, limit=5)
    assert fill(cache, [1, 2, 3, 4], 3).tolist() == [2] * 2 + [3] * 3 + [4] * 3  # 5 of the past, 3 new
    assert cache.length == 8


def test_copies_are_independent() -> None:
    cache = make(4)
    fill(cache, [1], 2)
    copied = cache.copy()
    assert fill(copied, [2], 2).tolist() == [1, 1, 2, 2]
    assert fill(cache, [3], 2).tolist() == [1, 1, 3, 3]
    assert fill(copied, [4], 2).tolist() == [1, 1, 2, 2, 4, 4]


def test_a_put_that_is_not_advanced_is_overwritten() -> None:
    cache = make(8)
    cache.reserve(2)
    cache.put(1, chunk(9.0, 2))
    assert fill(cache, [1], 2).tolist() == [1, 1]
