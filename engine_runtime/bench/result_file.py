"""The result of a measurement as a file: what was run, where, and every table with its definitions.

In: facts and tables (engine_runtime/table.py). Out: one JSON document, its problems if it was edited by hand,
and a table of it as Markdown. RESULTS.md shows tables of the files in `results/`. Any thread.

    {"schema": 1, "measurement": "moss-voice bench", "command": "moss-voice bench --runs 8",
     "date": "2026-11-27", "machine": {"processor": ...}, "versions": {"torch": ...},
     "settings": {"weights": "fp8", ...}, "remarks": ["..."],
     "tables": [{"part": "weights: fp8", "title": "decode step", "columns": {"ms": "median", ...},
                 "terms": {}, "rows": [{"ms": 2.4, ...}, ...], "note": ""}]}
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from engine_runtime.errors import MossVoiceError
from engine_runtime.table import Cell, Section

SCHEMA = 1
_MACHINE = ("system", "processor", "cores", "gpu", "compute_capability")
_VERSIONS = (
    *("python", "torch", "numpy", "cuda", "driver"),
    *("triton", "tensorrt", "tensorrt-rtx", "tensorrt-llm"),
)
"""Facts of `hardware.environment` that describe the machine, and what is installed; others are settings."""
_TEXTS = ("measurement", "command", "date")
_TABLE = {"part": str, "title": str, "columns": dict, "terms": dict, "rows": list, "note": str}
_PROGRAM = "moss-voice"


class ResultError(MossVoiceError):
    """A file is no result."""


@dataclass(slots=True)
class ResultFile:
    """Filled in while a measurement runs. `command` is what repeats it."""

    measurement: str
    command: str
    facts: dict[str, Cell] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    tables: list[tuple[str, Section]] = field(default_factory=list)
    """Each with the part of the report that it belongs to, "" before the first one."""

    def document(self) -> dict[str, Any]:
        """As plain values."""
        named = {*_MACHINE, *_VERSIONS}
        return {
            "schema": SCHEMA,
            "measurement": self.measurement,
            "command": self.command,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "machine": {name: self.facts[name] for name in _MACHINE if name in self.facts},
            "versions": _own_version() | {name: self.facts[name] for name in _VERSIONS if name in self.facts},
            "settings": {name: value for name, value in self.facts.items() if name not in named},
            "remarks": self.remarks,
            "tables": [_table(part, section) for part, section in self.tables],
        }

    def text(self) -> str:
        """The content of the file."""
        return json.dumps(self.document(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_result(file: Path) -> dict[str, Any]:
    """The document of a file. Raises ResultError with all that is wrong."""
    try:
        document = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ResultError(f"{file.name} is no result: {error}.") from error
    if problems := list(problems_of(document)):
        raise ResultError(f"{file.name} is no result: {'; '.join(problems)}.")
    return document  # type: ignore[no-any-return]


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
    for group, least in (("machine", "processor"), ("versions", _PROGRAM), ("settings", "")):
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


def _table(part: str, section: Section) -> dict[str, Any]:
    rows = [{name: _plain(cell) for name, cell in row.items()} for row in section.rows]
    return {
        "part": part,
        "title": section.title,
        "columns": section.columns,
        "terms": section.terms,
        "rows": rows,
        "note": section.note,
    }


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


def _plain(cell: Cell) -> Cell:
    """JSON knows no infinity."""
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell


def _own_version() -> dict[str, Cell]:
    try:
        return {_PROGRAM: metadata.version(_PROGRAM)}
    except metadata.PackageNotFoundError:
        return {_PROGRAM: "(not installed)"}
