"""The report of a tool that measures: tables on stdout, and files of the options --json and --markdown.

As that of `moss-voice bench` (app/commands/live_report.py), so that RESULTS.md can show its tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from app.commands.live_report import LiveReport, add_report_options, live_report
from engine_runtime.hardware import environment

_FACTS = ("system", "processor", "cores", "python", "numpy", "torch", "torch_threads")


def parse(parser: argparse.ArgumentParser, words: list[str] | None = None) -> argparse.Namespace:
    """The arguments of the command line, with those of a report."""
    add_report_options(parser)
    given = sys.argv[1:] if words is None else words
    arguments = parser.parse_args(given)
    arguments.words = given
    return arguments


@contextmanager
def tool_report(name: str, arguments: argparse.Namespace) -> Iterator[LiveReport]:
    """A report of the tool of this name, which begins with the facts of the machine."""
    command = f"python -m tests.tools.{name}"
    known = environment()
    with live_report(command, arguments, command) as report:
        report.facts({fact: known[fact] for fact in _FACTS})
        yield report
