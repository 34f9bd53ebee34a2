"""Which stream of the flow holds which pages of the common caches.

In: how many pages a stream needs for its next packet. Out: their numbers. If none is free, the stream that
began last leaves its pages, which are copied to host memory, and gets some back before its next packet.
Unless its deadline is near, it waits until older ones have ended: if all advanced evenly, each packet would
move the pages of another stream. Thread of the caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from engine_runtime.codec.flow.paged_cache import PagedCache
from engine_runtime.errors import FlowCacheError

HostPage = tuple[Tensor, ...]
"""A page in host memory, a tensor of each cache."""


class HostPages:
    """Pages in host memory, while other streams use those of the GPU. Copies are made in the order of the
    caller's CUDA stream, which must be the same for all; no call waits for them."""

    def __init__(self, caches: Sequence[PagedCache], count: int) -> None:
        """`count` pages are allocated at once, more when needed, and all are kept: allocating pinned memory
        takes longer than many packets."""
        self._caches = caches
        self._free: list[HostPage] = self._allocate(count)

    def take_out(self, page: int) -> HostPage:
        """A copy of this page of the caches."""
        kept = (self._free or self._allocate(1)).pop()
        for cache, part in zip(self._caches, kept, strict=True):
            cache.take_out(page, part)
        return kept

    def put_back(self, page: int, kept: HostPage) -> None:
        """Write what `take_out` returned to this page, and free its memory."""
        for cache, part in zip(self._caches, kept, strict=True):
            cache.put_back(page, part)
        self._free.append(kept)

    def give_back(self, kept: Sequence[HostPage]) -> None:
        """Free the memory of pages that nobody needs any more."""
        self._free += kept

    def _allocate(self, count: int) -> list[HostPage]:
        return list(zip(*(cache.host_pages(count) for cache in self._caches), strict=True))


@dataclass(slots=True, eq=False)
class Pages:
    """What a stream holds of the common buffers: a slot, and pages after those of the prompt."""

    slot: int
    pages: list[int] = field(default_factory=list)
    parked: list[HostPage] = field(default_factory=list)
    """Contents of the pages while other streams use them."""


class PagePool:
    def __init__(self, num_pages: int, host: HostPages) -> None:
        self._free = list(range(num_pages))
        self._host = host
        self._streams: list[Pages] = []
        """Open streams, in the order in which they began."""
        self._closed: deque[Pages] = deque()
        """Closed streams. Their pages are freed at the next call: streams end in any thread, at any time."""

    @property
    def num_free(self) -> int:
        """Pages that no stream holds."""
        self._collect()
        return len(self._free)

    def reserve(self) -> int:
        """A page that no stream gets."""
        return self._free.pop()

    def open(self, slot: int) -> Pages:
        """What a new stream holds: nothing."""
        self._streams.append(stream := Pages(slot))
        return stream

    def keep(self, stream: Pages) -> list[int]:
        """End a stream and return its pages, which no other stream gets."""
        self._streams.remove(stream)
        return stream.pages

    def close(self, stream: Pages) -> None:
        """End a stream. Any thread."""
        self._closed.append(stream)

    def is_short(self, stream: Pages, wanted: int, beside: Sequence[tuple[Pages, int]] = ()) -> bool:
        """Whether a stream that needs this many pages would take some from streams that began earlier, given
        the needs of others in the same call."""
        self._collect()
        missing = sum(max(pages - len(one.pages), 0) for one, pages in ((stream, wanted), *beside))
        if missing <= len(self._free):
            return False
        younger = self._streams[self._streams.index(stream) + 1 :]
        busy = [one for one, _ in beside]
        return missing > len(self._free) + sum(len(one.pages) for one in younger if one not in busy)

    def take(self, stream: Pages, wanted: int, busy: Collection[Pages]) -> None:
        """Make the stream hold `wanted` pages with their content; `busy` streams keep theirs. Raises
        FlowCacheError if there are too few."""
        self._collect()
        while len(self._free) < wanted - len(stream.pages):
            self._park(busy)
        while len(stream.pages) < wanted:
            stream.pages.append(self._free.pop())
        # Not strict: there are more pages than parked ones, since the next packet needs new ones behind them.
        for page, kept in zip(stream.pages, stream.parked, strict=False):
            self._host.put_back(page, kept)
        stream.parked.clear()

    def _collect(self) -> None:
        while self._closed:
            stream = self._closed.popleft()
            self._streams.remove(stream)
            self._free += stream.pages
            self._host.give_back(stream.parked)

    def _park(self, busy: Collection[Pages]) -> None:
        for stream in reversed(self._streams):
            if stream.pages and stream not in busy:
                stream.parked = [self._host.take_out(page) for page in stream.pages]
                self._free += stream.pages
                stream.pages.clear()
                return
        raise FlowCacheError(
            "The flow's caches are too small for this many replies.", "Wait until one has ended."
        )
