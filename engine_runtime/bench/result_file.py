"""The result of a measurement as a file: what was run, where, and every table with its definitions.

In: facts and tables (engine_runtime/table.py). Out: one JSON document. RESULTS.md shows tables of the files
in `results/`, which tests/tools/result_tables.py reads. Any thread.

    {"schema": 1, "measurement": "moss-voice bench", "command": "moss-voice bench --runs 8",
     "date": "2026-11-27", "machine": {"processor": ...}, "versions": {"torch": ...},
     "settings": {"weights": "fp8", ...}, "remarks": ["..."],
     "tables": [{"part": "weights: fp8", "title": "decode step", "columns": {"ms": "median", ...},
                 "terms": {}, "rows": [{"ms": 2.4, ...}, ...], "note": ""}]}
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from engine_runtime.table import Cell, Section

SCHEMA = 1
_MACHINE = ("system", "processor", "cores", "gpu", "compute_capability")
_VERSIONS = (
    *("python", "torch", "numpy", "cuda", "driver"),
    *("triton", "tensorrt", "tensorrt-rtx", "tensorrt-llm"),
)
"""Facts of `hardware.environment` that describe the machine, and what is installed; others are settings."""
PROGRAM = "moss-voice"


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


def _plain(cell: Cell) -> Cell:
    """JSON knows no infinity."""
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell


def _own_version() -> dict[str, Cell]:
    try:
        return {PROGRAM: metadata.version(PROGRAM)}
    except metadata.PackageNotFoundError:
        return {PROGRAM: "(not installed)"}
