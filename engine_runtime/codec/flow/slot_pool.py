"""Pool of the buffers of all static flow streams, within one memory budget.

In: the number of Euler steps of a new stream. Out: an exclusive slot, or a FlowCacheError before the stream
computes anything. A slot returns to the pool when its stream is collected, and is reused. If the budget is
exhausted, idle slots of other step counts are freed. Runs in the thread of its caller.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from engine_runtime.errors import FlowCacheError

Slot = TypeVar("Slot")


@dataclass(slots=True)
class SlotPool(Generic[Slot]):
    """`size_of` is the bytes of a slot for a number of steps; `make` creates one, `drop` frees an idle
    one."""

    budget: int
    """Maximum total bytes of all slots."""
    size_of: Callable[[int], int]
    make: Callable[[int], Slot]
    drop: Callable[[Slot], None]
    held: int = 0
    """Total bytes of all slots."""
    taken: int = 0
    """Slots in use."""
    _idle: dict[int, list[Slot]] = field(default_factory=dict)

    def take(self, steps: int) -> Slot:
        """Take a slot until `put_back`. Raises FlowCacheError if none is idle and the budget is exhausted."""
        idle = self._idle.setdefault(steps, [])
        if not idle:
            self._add(steps)
        self.taken += 1
        return idle.pop()

    def put_back(self, steps: int, slot: Slot) -> None:
        """Return a taken slot to the pool."""
        self.taken -= 1
        self._idle[steps].append(slot)

    def lend(self, steps: int, slot: Slot, owner: object) -> None:
        """Return a taken slot to the pool once its owner is collected."""
        weakref.finalize(owner, self.put_back, steps, slot).atexit = False

    def reserve(self, steps: int, count: int) -> None:
        """Create slots until `count` are idle."""
        while len(self._idle.setdefault(steps, [])) < count:
            self._add(steps)

    def clear(self) -> None:
        """Forget all slots, none of which is in use."""
        self._idle.clear()
        self.held = 0

    def _add(self, steps: int) -> None:
        size = self.size_of(steps)
        self._make_room(steps, size)
        slot = self.make(steps)
        self.held += size
        self._idle[steps].append(slot)

    def _make_room(self, steps: int, size: int) -> None:
        for other, idle in self._idle.items():
            while other != steps and idle and self.held + size > self.budget:
                self.drop(idle.pop())
                self.held -= self.size_of(other)
        if self.held + size > self.budget:
            raise FlowCacheError(
                "The flow's caches are limited to {budget:.0f} MB, and the active replies ({taken}) leave "
                "too little for another of {size:.0f} MB.",
                "Wait until one of them has ended, or interrupt it. Fewer flow steps and --codec-dtype "
                "float16 need less memory.",
                budget=self.budget / 1e6,
                taken=self.taken,
                size=size / 1e6,
            )
