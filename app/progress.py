"""Progress bars (on a terminal only) and notes on stderr."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def note(text: str) -> None:
    """One line that the user should see."""
    say(f"moss-voice: {text}")


def say(text: str) -> None:
    """Print a line on stderr; errors are ignored."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


@contextmanager
def progress_bar(what: str, total: float = 1.0) -> Iterator[Callable[[float], None]]:
    """Yields a function that takes how much of `total` is done by now."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda done: None
        return
    from tqdm import tqdm

    shape = "{desc} {percentage:3.0f}% |{bar}| {elapsed}<{remaining}"
    with tqdm(
        desc=what,
        total=total,
        bar_format=shape,
        leave=False,
        file=sys.stderr,
    ) as bar:
        yield lambda done: bar.update(done - bar.n)
