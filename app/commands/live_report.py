"""LiveReport: a report that is printed as it is measured, and written to files at its end.

In: facts and tables (engine_runtime/table.py), each once. Out: lines on stdout at once; at the end a Markdown
file of all of it, and a result file (engine_runtime/bench/result_file.py), also if the measurement fails on
the way; or plain values as one line of JSON on stdout, for another program.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app import paths
from app.export import ExportFile, check_names, check_target
from app.progress import json_document
from engine_runtime.bench.result_file import ResultFile
from engine_runtime.table import Cell, Section

_STDOUT = Path("-")


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Declare where a report goes besides stdout."""
    parser.add_argument(
        "--json",
        nargs="?",
        type=paths.user_path,
        const=_STDOUT,
        metavar="FILE",
        help="write a file with the command, the machine, and every table with its definitions; without a "
        "FILE end the output with one JSON document for another program",
    )
    parser.add_argument(
        "--markdown", type=paths.user_path, metavar="FILE", help="also write the report as Markdown"
    )


class LiveReport:
    """Prints a report as it is measured.

    Attributes:
        document: plain values for another program, which the measurement fills in.
        part: the latest heading.
    """

    def __init__(self, measurement: str, command: str, document: dict[str, Any]) -> None:
        self.document = document
        self._result = ResultFile(measurement, command)
        self.part = ""
        self._markdown: list[str] = []

    def facts(self, facts: Mapping[str, Cell]) -> None:
        """Names with their values, one a line."""
        _print([f"# {name}: {value}" for name, value in facts.items()])
        self._markdown += [*(f"- {name}: {value}" for name, value in facts.items()), ""]
        part = f"{self.part}: " if self.part else ""
        self._result.facts |= {part + name: value for name, value in facts.items()}

    def remark(self, *sentences: str) -> None:
        """Sentences about what follows or precedes."""
        _print([f"# {sentence}" for sentence in sentences])
        self._markdown += [line for sentence in sentences for line in (sentence, "")]
        self._result.remarks += sentences

    def heading(self, text: str) -> None:
        """Begin a part."""
        _print(["", f"# {text}"])
        self._markdown += [f"## {text}", ""]
        self.part = text

    def add(self, section: Section) -> dict[str, Any]:
        """A table; returns its plain values."""
        _print(section.lines())
        self._markdown += section.markdown()
        self._result.tables.append((self.part, section))
        return section.document()

    def write(self, markdown: Path | None, result: Path | None) -> None:
        """Write the files that are wanted, unless there is nothing to write. Raises ExportError."""
        if not self._markdown:
            return
        title = [f"# {self._result.measurement}", ""]
        texts = {markdown: "\n".join(title + self._markdown).rstrip() + "\n", result: self._result.text()}
        for file, text in texts.items():
            if file is not None:
                with ExportFile(file) as export:
                    export.write(text.encode())


@contextmanager
def live_report(
    measurement: str, arguments: argparse.Namespace, program: str = "moss-voice"
) -> Iterator[LiveReport]:
    """A report that goes where `add_report_options` said when the block ends, also by an error.
    `arguments.words` are those that `program` was started with. Raises ExportError at the beginning if a file
    cannot be written."""
    is_on_stdout = arguments.json == _STDOUT
    result: Path | None = None if is_on_stdout else arguments.json
    check_names({"--markdown": arguments.markdown, "--json": result}, {})
    for file in (arguments.markdown, result):
        if file is not None:
            check_target(file)
    with json_document(is_on_stdout) as document:
        report = LiveReport(measurement, f"{program} {shlex.join(arguments.words)}".rstrip(), document)
        try:
            yield report
        finally:
            report.write(arguments.markdown, result)


def _print(lines: Sequence[str]) -> None:
    print("\n".join(lines), flush=True)
