"""Writes the tables of RESULTS.md that are of recorded results anew.

    python -m tests.tools.result_tables [FILE]

In: a Markdown file, and the files in `results/` beside it (engine_runtime/bench/result_file.py). A table of
them stands below a line that says of which file it is, of which table, which columns it shows (all without
that part) and which rows, by what their first column says (again all without it); a part of the report is
named if several have a table of that title:

    <!-- results/h200.json: weights: fp8 / decode step: cached_tokens, ms, ratio -->
    <!-- results/pauses.json: with the detector: ends by, wait_ms | balanced | balanced, 8 turns -->

Out: the file with each such table as it is in the result. A test fails where one differs, and for a file that
is no result.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engine_runtime.bench import result_file
from engine_runtime.bench.result_file import PROGRAM, SCHEMA
from engine_runtime.table import Section

_TEXTS = ("measurement", "command", "date")
_TABLE = {"part": str, "title": str, "columns": dict, "terms": dict, "rows": list, "note": str}
DOCUMENT = Path(result_file.__file__).with_name("RESULTS.md")
_MARK = re.compile(
    r"^<!-- (?P<file>results/[\w.-]+\.json): "
    r"(?:(?P<part>.+) / )?(?P<title>[^/:|]+)(?:: (?P<columns>[^:|]+))?(?: \| (?P<rows>.+))? -->$"
)


class ResultError(Exception):
    """A file is no result."""


def rendered(text: str, folder: Path) -> str:
    """The text of a document with its tables anew. Raises ResultError if a mark names what is not there."""
    lines: list[str] = []
    is_old_table = False
    for line in text.splitlines():
        if is_old_table and line.startswith("|"):
            continue
        is_old_table = False
        lines.append(line)
        if line.startswith("<!-- results/"):
            lines += _table(line, folder)
            is_old_table = True
    return "\n".join(lines) + "\n"


def _table(mark: str, folder: Path) -> list[str]:
    match = _MARK.match(mark)
    if match is None:
        raise ResultError(f"{mark} does not name a file, a table and columns.")
    section = table_of(read_result(folder / match["file"]), match["title"], match["part"] or "")
    if match["columns"]:
        chosen = match["columns"].split(", ")
        if unknown := [name for name in chosen if name not in section.columns]:
            raise ResultError(f"{mark} has no column {unknown[0]}.")
        section.columns = {name: section.columns[name] for name in chosen}
    if match["rows"]:
        first = next(iter(section.columns))
        by_name = {str(row.get(first)): row for row in section.rows}
        if unknown := [name for name in match["rows"].split(" | ") if name not in by_name]:
            raise ResultError(f"{mark} has no row {unknown[0]}.")
        section.rows = [by_name[name] for name in match["rows"].split(" | ")]
    return section.markdown_table()


def read_result(file: Path) -> dict[str, Any]:
    """The document of a file. Raises ResultError with all that is wrong."""
    try:
        document = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ResultError(f"{file.name} is no result: {error}.") from error
    if problems := list(problems_of(document)):
        raise ResultError(f"{file.name} is no result: {'; '.join(problems)}.")
    return document


def problems_of(document: Any) -> Iterator[str]:
    """What keeps a document from being a result."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        yield f"its schema is not {SCHEMA}"
        return
    for name in _TEXTS:
        if not isinstance(document.get(name), str) or not document[name]:
            yield f"it has no {name}"
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", str(document.get("date"))):
        yield "its date is not YYYY-MM-DD"
    for group, least in (("machine", "processor"), ("versions", PROGRAM), ("settings", "")):
        facts = document.get(group)
        if not isinstance(facts, dict) or not all(map(_is_cell, facts.values())):
            yield f"its {group} are not plain values"
        elif least and least not in facts:
            yield f"its {group} have no {least}"
    tables = document.get("tables")
    if not isinstance(tables, list) or not tables:
        yield "it has no tables"
        return
    for table in tables:
        yield from _problems_of_table(table)


def table_of(document: Mapping[str, Any], title: str, part: str = "") -> Section:
    """A table by its title, and the part of the report if several have that. ResultError without it."""
    found = [
        table
        for table in document["tables"]
        if table["title"] == title and (not part or table["part"] == part)
    ]
    if len(found) != 1:
        raise ResultError(f"{document['command']!r} has {len(found)} tables {title!r} {part}".rstrip() + ".")
    (table,) = found
    return Section(title, table["columns"], table["rows"], table["note"], table["terms"])


def _problems_of_table(table: Any) -> Iterator[str]:
    if not isinstance(table, dict) or {name: type(value) for name, value in table.items()} != _TABLE:
        yield "a table has other fields than " + ", ".join(_TABLE)
        return
    title, columns = table["title"], table["columns"]
    if not columns and not table["note"]:
        yield f"{title} is missing without a reason"
    if undefined := [name for name, text in (columns | table["terms"]).items() if not text]:
        yield f"{title} does not define {', '.join(undefined)}"
    for row in table["rows"]:
        if not isinstance(row, dict) or not all(map(_is_cell, row.values())):
            yield f"{title} has a row that is not of plain values"
        elif unknown := row.keys() - columns.keys():
            yield f"{title} has values without a column: {', '.join(sorted(unknown))}"


def _is_cell(value: object) -> bool:
    return value is None or isinstance(value, float | int | str)


if __name__ == "__main__":
    document = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCUMENT
    document.write_text(rendered(document.read_text("utf-8"), document.parent), encoding="utf-8")
