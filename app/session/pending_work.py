"""Counts the unfinished tasks of the other threads, for which a virtual clock waits.

In: one `begin` and one `end` per task. Out: an event that is set while there is none. Any thread.
"""

from __future__ import annotations

import threading


class PendingWork:
    """A count that several workers share."""

    def __init__(self) -> None:
        self.idle = threading.Event()
        """Set while no work is waiting or being done."""
        self.idle.set()
        self._count = 0
        self._lock = threading.Lock()

    def begin(self) -> None:
        """A task was started."""
        with self._lock:
            self._count += 1
            self.idle.clear()

    def end(self) -> None:
        """A task is done, and its result is available."""
        with self._lock:
            self._count -= 1
            if self._count == 0:
                self.idle.set()
