"""Memory that ended conversations have freed and that the C library keeps for later.

With conversations of different lengths glibc keeps more and more of it, in gaps between what is still used: a
server would grow by some MB a conversation. Returning it stops all threads for some 30 ms with 50
conversations, though what was loaded is frozen (`EnginePool`): while replies are made it is done rarely.
Engine thread.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from functools import cache

_INTERVAL_S = 30.0
"""While the engine is busy."""


class FreedMemory:
    """See the module."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._is_noted = False
        self._gave_back_s = clock_s()

    def note(self) -> None:
        """A conversation has ended."""
        self._is_noted = True

    def give_back(self, *, is_idle: bool) -> None:
        """Return memory to the system if a conversation has ended since the last time: at once if the engine
        is idle."""
        if self._is_noted and (is_idle or self._clock_s() - self._gave_back_s >= _INTERVAL_S):
            give_back_free_memory()
            self._is_noted, self._gave_back_s = False, self._clock_s()


def give_back_free_memory() -> None:
    """Return free memory to the system, where the C library can (glibc), with what only cycles refer to."""
    gc.collect()
    _trim()(0)


@cache
def _trim() -> Callable[[int], object]:
    try:
        trim: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return lambda kept_bytes: None
    return trim
