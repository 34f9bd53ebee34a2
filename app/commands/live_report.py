"""LiveReport: a report that is printed as it is measured, and that can be written as Markdown at its end.

In: facts and tables (engine_runtime/table.py), each once. Out: lines on stdout at once, plain values for a
JSON document, and one Markdown file of all of it, also if the measurement fails on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.export import ExportFile
from engine_runtime.table import Section


class LiveReport:
    """See the module."""

    def __init__(self, title: str) -> None:
        self._title = [f"# {title}", ""]
        self._markdown: list[str] = []

    def facts(self, facts: Mapping[str, object]) -> None:
        """Names with their values, one a line."""
        _print([f"# {name}: {value}" for name, value in facts.items()])
        self._markdown += [*(f"- {name}: {value}" for name, value in facts.items()), ""]

    def remark(self, *sentences: str) -> None:
        """Sentences about what follows or precedes."""
        _print([f"# {sentence}" for sentence in sentences])
        self._markdown += [line for sentence in sentences for line in (sentence, "")]

    def heading(self, text: str) -> None:
        """Begin a part."""
        _print(["", f"# {text}"])
        self._markdown += [f"## {text}", ""]

    def add(self, section: Section) -> dict[str, Any]:
        """A table; returns its plain values."""
        _print(section.lines())
        self._markdown += section.markdown()
        return section.document()

    def write_markdown(self, file: Path) -> None:
        """Write all of it, unless there is nothing. Raises ExportError."""
        if self._markdown:
            with ExportFile(file) as export:
                export.write(("\n".join(self._title + self._markdown).rstrip() + "\n").encode())


@contextmanager
def live_report(title: str, markdown: Path | None) -> Iterator[LiveReport]:
    """A report that is written to `markdown`, if there is one, when the block ends, also by an error."""
    report = LiveReport(title)
    try:
        yield report
    finally:
        if markdown is not None:
            report.write_markdown(markdown)


def _print(lines: Sequence[str]) -> None:
    print("\n".join(lines), flush=True)
