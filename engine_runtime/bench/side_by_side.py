"""Summary of the language model benchmark: all variants (weight formats of torch, an engine) in one table.

In: the tables of each variant as JSON documents, or its error. Out: one table; a row without a valid time
states the reason. No torch. Any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_runtime.table import Cell, Section

COLUMNS = {
    "variant": "weight format under torch, or trtllm for an engine",
    "work": "prefill of this many rows, or decode step after this many rows; as in the tables above",
    "ms": "median wall time",
    "ms_p95": "95th percentile",
    "tokens_per_s": "rows of the prefill, or the one of the step / ms",
    "device_ms": "median GPU time, by events on the engine's own stream",
    "ratio": "of a step: ms / time to read its bytes at the measured copy bandwidth",
    "valid": "yes, or why no time is reported",
}
_ROWS = {"prefill": "rows", "decode step": "cached_rows"}


def side_by_side(stages: Mapping[str, Mapping[str, Any]]) -> Section:
    """`stages` maps a variant to its tables by title; "error" is the reason why tables are missing."""
    section = Section("language model, side by side", COLUMNS)
    for variant, tables in stages.items():
        for title, rows_name in _ROWS.items():
            for row in tables.get(title, {}).get("rows", ()):
                work = f"{title.removeprefix('decode ')} {row[rows_name]}"
                cells: dict[str, Cell] = {"variant": variant, "work": work}
                section.rows.append(cells | {name: row.get(name) for name in list(COLUMNS)[2:]})
        if error := tables.get("error"):
            section.rows.append({"variant": variant, "work": "the rest", "valid": f"no: {error}"})
    return section


def is_complete(section: Section) -> bool:
    """Whether every row has a time."""
    return all(row["valid"] == "yes" for row in section.rows)
