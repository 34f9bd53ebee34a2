"""Progress bars (on a terminal, or as lines for a parent process that asks for them) and notes on stderr;
progress as lines on stdout for another program."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from engine_runtime.errors import MossVoiceError, Problem

LINES_VARIABLE = "MOSS_VOICE_PROGRESS_LINES"
"""Environment variable: progress bars are lines on stderr instead, so many seconds apart."""
PROBLEM_VARIABLE = "MOSS_VOICE_PROBLEMS"
"""Environment variable: a command that fails prints its problem as a line of JSON on stdout, too."""
_PROBLEM = "problem"
_LINE_S = 0.2
"""Shortest interval between lines of progress."""


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
    if interval := os.environ.get(LINES_VARIABLE):
        yield _text_lines(what, total, float(interval))
        return
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


def _text_lines(what: str, total: float, interval_s: float) -> Callable[[float], None]:
    printed_s = 0.0

    def show(done: float) -> None:
        nonlocal printed_s
        if total and (done >= total or time.monotonic() - printed_s >= interval_s):
            printed_s = time.monotonic()
            say(f"{what}: {100 * done / total:.0f} %")

    return show


def print_problem(problem: Problem) -> None:
    """Print it for a parent process that asks for that."""
    if os.environ.get(PROBLEM_VARIABLE):
        with contextlib.suppress(OSError, ValueError):
            print(json.dumps({_PROBLEM: problem.to_json()}), flush=True)


def problem_of(line: Mapping[str, Any]) -> Problem | None:
    """The problem of a line or document of a child; None if it names none."""
    described = line.get(_PROBLEM)
    with contextlib.suppress(ValueError):
        return Problem.from_json(described) if isinstance(described, dict) else None
    return None


def printed_problem(output: str) -> Problem | None:
    """The last problem in the output of a child; None if it printed none."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                if (problem := problem_of(json.loads(line))) is not None:
                    return problem
    return None


@contextmanager
def json_document(is_wanted: bool) -> Iterator[dict[str, Any]]:
    """Yields a document to fill in, and prints it as one line of JSON if that is wanted: also if the command
    fails or is interrupted, with what was filled in until then and the error."""
    document: dict[str, Any] = {}
    try:
        yield document
    except BaseException as error:
        own = isinstance(error, MossVoiceError)
        document["error"] = str(error) if own else f"{type(error).__name__}: {error}"
        if isinstance(error, MossVoiceError):
            document[_PROBLEM] = error.problem.to_json()
        raise
    finally:
        if is_wanted:
            print(json.dumps(document), flush=True)


def line_printer(step: str) -> Callable[[float, float], None]:
    """A function that prints lines of JSON on stdout: `step`, and how much of `total` is `done`."""
    printed_s = 0.0

    def show(done: float, total: float) -> None:
        nonlocal printed_s
        if done >= total or time.monotonic() - printed_s >= _LINE_S:
            printed_s = time.monotonic()
            print(json.dumps({"step": step, "done": done, "total": total}), flush=True)

    return show


@contextmanager
def progress_lines(step: str) -> Iterator[Callable[[float], None]]:
    """Like `progress_bar`, in lines for another program."""
    show = line_printer(step)
    yield lambda share: show(share, 1.0)
