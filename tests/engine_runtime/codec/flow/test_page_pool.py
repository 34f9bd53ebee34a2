"""Pages of the flow's streams: who has to wait for them, and who leaves them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from engine_runtime.codec.flow.page_pool import HostPage, HostPages, PagePool, Pages
from engine_runtime.codec.flow.paged_cache import PagedCache
from engine_runtime.errors import FlowCacheError


class Moves(HostPages):
    """What was moved, in order."""

    def __init__(self) -> None:
        super().__init__((), 0)
        self.moves: list[tuple[str, int]] = []
        self.freed = 0

    def take_out(self, page: int) -> HostPage:
        self.moves.append(("out", page))
        return (torch.tensor(page),)

    def put_back(self, page: int, kept: HostPage) -> None:
        self.moves.append(("in", page))

    def give_back(self, kept: Sequence[HostPage]) -> None:
        self.freed += len(kept)


@pytest.fixture
def moves() -> Moves:
    return Moves()


@pytest.fixture
def pool(moves: Moves) -> PagePool:
    """Eight pages."""
    return PagePool(8, moves)


def held(streams: Sequence[Pages]) -> list[int]:
    return [len(stream.pages) for stream in streams]


def test_the_stream_that_began_last_leaves_its_pages(pool: PagePool, moves: Moves) -> None:
    streams = [pool.open(slot) for slot in range(3)]
    for stream, count in zip(streams, (2, 3, 3), strict=True):
        pool.take(stream, count, [stream])
    pool.take(streams[0], 4, [streams[0]])
    assert held(streams) == [4, 3, 0]
    assert [way for way, _ in moves.moves] == ["out"] * 3
    pool.take(streams[2], 3, [streams[2]])
    assert held(streams) == [4, 0, 3], "it has its pages again"
    assert sorted(page for _, page in moves.moves[-3:]) == sorted(streams[2].pages)
    assert [way for way, _ in moves.moves[-3:]] == ["in"] * 3


def test_streams_of_the_same_call_keep_their_pages(pool: PagePool) -> None:
    streams = [pool.open(slot) for slot in range(3)]
    for stream in streams:
        pool.take(stream, 2, [stream])
    busy = [streams[0], streams[2]]
    for stream in busy:
        pool.take(stream, 4, busy)
    assert held(streams) == [4, 0, 4]
    with pytest.raises(FlowCacheError, match="too small for this many replies"):
        pool.take(streams[1], 1, streams)


def test_who_is_short_of_pages(pool: PagePool) -> None:
    old, young = pool.open(0), pool.open(1)
    pool.take(old, 4, [old])
    pool.take(young, 3, [young])
    assert not pool.is_short(young, 4), "one is free"
    assert pool.is_short(young, 5)
    assert not pool.is_short(old, 8), "it gets those of the younger one"
    assert not pool.is_short(old, 5, [(young, 3)])
    assert pool.is_short(old, 6, [(young, 3)]), "not in a call of both"
    assert pool.is_short(young, 4, [(old, 5)]), "the free one is the other's"


def test_pages_come_back_in_the_end(pool: PagePool, moves: Moves) -> None:
    kept, spare = pool.open(9), pool.reserve()
    pool.take(kept, 2, [kept])
    assert len({spare, *pool.keep(kept)}) == 3
    first, second = pool.open(0), pool.open(1)
    pool.take(second, 5, [second])
    pool.take(first, 5, [first])
    assert held([first, second]) == [5, 0]
    pool.close(second)
    assert pool.num_free == 0
    assert moves.freed == 5
    pool.close(first)
    assert pool.num_free == 5


def test_a_stream_may_end_while_its_pages_are_moved(
    pool: PagePool, moves: Moves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it is collected as garbage then."""
    old, young = pool.open(0), pool.open(1)
    pool.take(young, 6, [young])
    take_out = moves.take_out

    def collected(page: int) -> HostPage:
        if not moves.moves:
            pool.close(young)
        return take_out(page)

    monkeypatch.setattr(moves, "take_out", collected)
    pool.take(old, 5, [old])
    assert pool.num_free == 3
    assert moves.freed == 6
    pool.close(old)
    assert pool.num_free == 8


def test_host_memory_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of two, of two caches with different rates; one is allocated when it is needed."""
    like = torch.zeros(0)
    caches = [PagedCache((1, 2, 1, 2, 4 * rows, 3), 0, rows, 4 * rows, like) for rows in (1, 2)]
    host = HostPages(caches, 1)
    for number, cache in enumerate(caches):
        cache.entry(0).copy_(torch.arange(cache.entry(0).numel()).reshape(cache.entry(0).shape) + number)
    before = [cache.entry(0).clone() for cache in caches]
    kept = [host.take_out(page) for page in (1, 3)]
    for cache in caches:
        cache.entry(0).zero_()
    for page, one in zip((1, 3), kept, strict=True):
        host.put_back(page, one)
    for cache, values, rows in zip(caches, before, (1, 2), strict=True):
        for page, is_same in enumerate((False, True, False, True)):
            part = slice(page * rows, (page + 1) * rows)
            assert torch.equal(cache.entry(0)[..., part, :], values[..., part, :]) == is_same
    monkeypatch.setattr(PagedCache, "host_pages", lambda self, count: pytest.fail("it has two"))
    assert {id(host.take_out(0)), id(host.take_out(2))} == {id(one) for one in kept}
