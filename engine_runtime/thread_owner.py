"""ThreadOwner: which thread owns an object, checked where only this one may call.

In: nothing. Out: `is_here`, for an `assert` at the start of a method; python -O leaves it out. An object that
no thread has claimed may be used by any, one at a time.
"""

from __future__ import annotations

import threading


class ThreadOwner:
    def __init__(self) -> None:
        self._thread: int | None = None

    def claim(self) -> None:
        """The calling thread owns the object from now on."""
        assert self.is_here, "another thread owns this"
        self._thread = threading.get_ident()

    def release(self) -> None:
        """Any thread may claim it."""
        assert self.is_here, "another thread owns this"
        self._thread = None

    @property
    def is_here(self) -> bool:
        """Whether the calling thread may use the object."""
        return self._thread in (None, threading.get_ident())
