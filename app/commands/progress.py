"""What is said on stderr beside the results: a progress bar, where someone is there to see it, and notes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def note(text: str) -> None:
    """One line that the user should see."""
    print(f"moss-voice: {text}", file=sys.stderr)


@contextmanager
def progress_bar(what: str, total: float = 1.0) -> Iterator[Callable[[float], None]]:
    """Yields a function that takes how much of `total` is done by now."""
    if not sys.stderr.isatty():
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
