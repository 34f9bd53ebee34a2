"""A table of checks that are made one after the other: a line for each, and how many failed.

In: blocks that raise where something does not hold. Out: lines on stdout. Main thread.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class CheckFailed(Exception):
    """A check did not hold; the reason."""


class Checks:
    """Runs checks and prints a line for each."""

    def __init__(self) -> None:
        self.failures = 0
        self.total = 0

    @contextmanager
    def check(self, name: str) -> Iterator[list[str]]:
        """A check that holds unless the block raises; the list takes what to add to its line."""
        notes: list[str] = []
        began_s = time.monotonic()
        self.total += 1
        try:
            yield notes
        except (CheckFailed, OSError, subprocess.SubprocessError) as error:
            self.failures += 1
            notes.append(str(error))
            say("FAILED", name, notes, time.monotonic() - began_s)
        else:
            say("ok", name, notes, time.monotonic() - began_s)


def say(result: str, name: str, notes: list[str], took_s: float) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{result:6}  {name:48}  {took_s:5.0f} s  {'; '.join(notes)}\n")
    sys.stdout.flush()


def require(holds: bool, otherwise: str) -> None:
    """Raise CheckFailed unless something holds."""
    if not holds:
        raise CheckFailed(otherwise)
