"""Section: one table of a measurement with the definitions of its columns, as text, JSON and Markdown.

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
    table without columns, why it is missing. `terms` defines names that stand in the first column."""

    title: str
    columns: dict[str, str]
    rows: list[dict[str, Cell]] = field(default_factory=list)
    note: str = ""
    terms: dict[str, str] = field(default_factory=dict)

    @property
    def is_missing(self) -> bool:
        """Whether nothing could be measured."""
        return not self.columns

    def document(self) -> dict[str, Any]:
        """Rows and note as plain values."""
        return {"rows": self.rows, "note": self.note}

    def lines(self) -> list[str]:
        """Title, definitions, table."""
        defined = self.columns | self.terms
        width = max(map(len, defined), default=0)
        lines = ["", f"== {self.title}"]
        lines += [f"# {name:<{width}}  {meaning}" for name, meaning in defined.items()]
        if self.note:
            lines.append(f"# {self.note}")
        if self.rows:
            table = self._cells()
            first = max(22, *(len(cells[0]) for cells in table))
            lines += [
                f"{cells[0]:<{first}}" + "".join(f"{cell:>16}" for cell in cells[1:]) for cells in table
            ]
        return lines

    def markdown(self) -> list[str]:
        """The same for a Markdown file: heading, table, note, definitions."""
        lines = [f"### {self.title}", ""]
        if self.rows:
            lines += [*self.markdown_table(), ""]
        if self.note:
            lines += [self.note, ""]
        if defined := self.columns | self.terms:
            lines += [*(f"- `{name}`: {meaning}" for name, meaning in defined.items()), ""]
        return lines

    def markdown_table(self) -> list[str]:
        """The table alone, for Markdown."""
        head, *body = ([cell.replace("|", "\\|") for cell in cells] for cells in self._cells())
        rule = _markdown_row(["---", *["---:"] * (len(head) - 1)])
        return [_markdown_row(head), rule, *map(_markdown_row, body)]

    def _cells(self) -> list[list[str]]:
        """The header and the rows as text."""
        return [list(self.columns), *([_text(row.get(name)) for name in self.columns] for row in self.rows)]


def _markdown_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.4g}" if abs(cell) < 1000 else f"{cell:.0f}"
    return str(cell)
