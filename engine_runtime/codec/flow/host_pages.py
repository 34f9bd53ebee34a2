"""Pages of the flow's caches in host memory, while other streams use those of the GPU.

In: a page of the caches. Out: its copy, and later the page as it was. Allocating pinned memory takes longer
than many packets, so pages are allocated at the start, and kept once they were needed. Copies are made in the
order of the caller's CUDA stream, which must be the same for all; no call waits for them. Thread of the
caller.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine_runtime.codec.flow.page_pool import HostPage
from engine_runtime.codec.flow.paged_cache import PagedCache


class HostPages:
    """Implements `PageMover`. `count` pages are allocated at once, more when needed."""

    def __init__(self, caches: Sequence[PagedCache], count: int) -> None:
        self._caches = caches
        self._free: list[HostPage] = self._allocate(count)

    def take_out(self, page: int) -> HostPage:
        kept = (self._free or self._allocate(1)).pop()
        for cache, part in zip(self._caches, kept, strict=True):
            cache.take_out(page, part)
        return kept

    def put_back(self, page: int, kept: HostPage) -> None:
        for cache, part in zip(self._caches, kept, strict=True):
            cache.put_back(page, part)
        self._free.append(kept)

    def give_back(self, kept: Sequence[HostPage]) -> None:
        self._free += kept

    def _allocate(self, count: int) -> list[HostPage]:
        return list(zip(*(cache.host_pages(count) for cache in self._caches), strict=True))
