"""The buffers of all streams of the static flow, under one budget.

In: a stream that begins, by its number of Euler steps. Out: a slot that nobody else uses, or a FlowCacheError
before anything is made of the stream. A slot goes back to the pool when its stream is forgotten, and serves
the next one. Where there is no room for another slot, idle ones of other numbers of steps make room. Runs in
the thread of its caller.
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
    """`size_of` is the bytes of a slot for a number of steps; `make` makes one, `drop` forgets an idle one
    for good."""

    budget: int
    """Bytes that all slots together may have."""
    size_of: Callable[[int], int]
    make: Callable[[int], Slot]
    drop: Callable[[Slot], None]
    held: int = 0
    """Bytes that all slots have."""
    taken: int = 0
    """Slots in use."""
    _idle: dict[int, list[Slot]] = field(default_factory=dict)

    def take(self, steps: int) -> Slot:
        """A slot, until `put_back`. Raises FlowCacheError where there is none and no room to make one."""
        idle = self._idle.setdefault(steps, [])
        if not idle:
            self._add(steps)
        self.taken += 1
        return idle.pop()

    def put_back(self, steps: int, slot: Slot) -> None:
        """A taken slot is not needed any more."""
        self.taken -= 1
        self._idle[steps].append(slot)

    def lend(self, steps: int, slot: Slot, owner: object) -> None:
        """Put a taken slot back as soon as nobody refers to its owner."""
        weakref.finalize(owner, self.put_back, steps, slot).atexit = False

    def reserve(self, steps: int, count: int) -> None:
        """Make slots until so many are idle."""
        while len(self._idle.setdefault(steps, [])) < count:
            self._add(steps)

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
                f"The flow's caches may take {self.budget / 1e6:.0f} MB, and the replies being spoken "
                f"({self.taken}) leave no room for another of {size / 1e6:.0f} MB. Wait until one of them "
                "has ended, or interrupt it. Fewer flow steps and --codec-dtype float16 take less."
            )
