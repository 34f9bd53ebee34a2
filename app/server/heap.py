"""Memory that was freed and that the C library keeps for later.

With conversations of different lengths glibc keeps more and more of it, in gaps between what is still used: a
server would grow by some MB a conversation. Engine thread, when a conversation has ended.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from functools import cache


def give_back_free_memory() -> None:
    """Return it to the system, where the C library can (glibc), with what only cycles refer to. Takes some
    milliseconds: what was loaded is frozen (`EnginePool`)."""
    gc.collect()
    _trim()(0)


@cache
def _trim() -> Callable[[int], object]:
    try:
        trim: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return lambda kept_bytes: None
    return trim
