"""Returns memory that was freed, but that the C library keeps, to the system.

With conversations and replies of different lengths glibc keeps more and more of it, in gaps between what is
still used: a server would grow by some MB a conversation, a window by some MB an hour. It is returned rarely
while anything is running, because it takes time: some 30 ms with 50 conversations, though what was loaded is
frozen (`EngineHost`). An object belongs to one thread.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from functools import cache

INTERVAL_S = 30.0
"""Interval between two returns, unless one is requested at once."""


class FreedMemory:
    def __init__(self, clock_s: Callable[[], float] = time.monotonic, *, with_cycles: bool = True) -> None:
        """`with_cycles` collects what only cycles refer to before, which stops all threads."""
        self._clock_s = clock_s
        self._with_cycles = with_cycles
        self._is_noted = False
        self._gave_back_s = clock_s()

    def note(self) -> None:
        """A conversation or a turn has ended, or will have before the next `give_back`."""
        self._is_noted = True

    def give_back(self, *, at_once: bool) -> None:
        """Return memory to the system if something has ended since the last time, `at_once` or 30 s after
        that."""
        if self._is_noted and (at_once or self._clock_s() - self._gave_back_s >= INTERVAL_S):
            give_back_free_memory(with_cycles=self._with_cycles)
            self._is_noted, self._gave_back_s = False, self._clock_s()


def give_back_free_memory(*, with_cycles: bool = True) -> None:
    """Return free memory to the system, where the C library can (glibc)."""
    if with_cycles:
        gc.collect()
    _trim()(0)


@cache
def _trim() -> Callable[[int], object]:
    try:
        trim: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return lambda kept_bytes: None
    return trim
