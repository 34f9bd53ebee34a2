"""Section: one table of a measurement with the definitions of its columns, as text and as JSON.

In: rows of plain values. Out: lines of text, or plain values for JSON. A table that does not apply on this
machine is included with the reason. Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Cell = float | int | str | None


@dataclass(slots=True)
class Section:
    """`columns` maps a column to its definition; the first names the row. `note` explains omissions or, for a
    table without columns, why it is missing."""

    title: str
    columns: dict[str, str]
    rows: list[dict[str, Cell]] = field(default_factory=list)
    note: str = ""

    @property
    def is_missing(self) -> bool:
        """Whether nothing could be measured."""
        return not self.columns

    def document(self) -> dict[str, Any]:
        """Rows and note as plain values."""
        return {"rows": self.rows, "note": self.note}

    def lines(self) -> list[str]:
        """Title, definitions, table."""
        width = max(map(len, self.columns), default=0)
        lines = ["", f"== {self.title}"]
        lines += [f"# {name:<{width}}  {meaning}" for name, meaning in self.columns.items()]
        if self.note:
            lines.append(f"# {self.note}")
        if self.rows:
            table = [
                list(self.columns),
                *([_text(row.get(name)) for name in self.columns] for row in self.rows),
            ]
            first = max(22, *(len(cells[0]) for cells in table))
            lines += [
                f"{cells[0]:<{first}}" + "".join(f"{cell:>16}" for cell in cells[1:]) for cells in table
            ]
        return lines


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.4g}" if abs(cell) < 1000 else f"{cell:.0f}"
    return str(cell)
