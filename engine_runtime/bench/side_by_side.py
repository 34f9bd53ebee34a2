"""The language model's times of every variant in one table: weight formats of torch, and an engine.

In: the tables of each variant as documents, or the error in their place. Out: one table. A run whose step
failed, or whose outputs are not finite and moving, has no time in it and says why. Any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_runtime.table import Cell, Section

COLUMNS = {
    "variant": "weights under torch, or trtllm: the engine",
    "work": "prefill of so many rows, or a decode step behind so many rows; as in the tables above",
    "ms": "median, as a reply waits for it",
    "ms_p95": "95th percentile",
    "device_ms": "median of what the GPU took, by events on the engine's own stream",
    "ratio": "of a step: ms / the time to read what it needs at the measured copy bandwidth",
    "valid": "yes, or why there is no time",
}
_ROWS = {"prefill": "rows", "decode step": "cached_rows"}


def side_by_side(stages: Mapping[str, Mapping[str, Any]]) -> Section:
    """`stages` maps a variant to its tables by title; "error" says why they are missing or not all there."""
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


def is_whole(section: Section) -> bool:
    """Whether every row has a time."""
    return all(row["valid"] == "yes" for row in section.rows)
