from __future__ import annotations

from engine_runtime.table import Cell, Section


def number(cell: Cell) -> float:
    """A cell that holds a number."""
    assert isinstance(cell, int | float)
    return cell


def test_a_table_says_what_its_columns_mean() -> None:
    section = Section("steps", {"rows": "rows before it", "ms": "median"}, note="8192 rows left out")
    section.rows += [{"rows": 512, "ms": 3.14159}, {"rows": 4096, "ms": 12345.6}, {"rows": 1}]
    lines = section.lines()
    assert lines[1] == "== steps"
    assert "# ms    median" in lines
    assert "# 8192 rows left out" in lines
    cells = [line.split() for line in lines[-4:]]
    assert cells == [["rows", "ms"], ["512", "3.142"], ["4096", "12346"], ["1", "-"]]
    assert section.document() == {"rows": section.rows, "note": "8192 rows left out"}


def test_without_rows_only_the_note_is_shown() -> None:
    section = Section("device memory", {"gb": "memory"}, note="does not apply on a CPU")
    assert section.lines()[-1] == "# does not apply on a CPU"


def test_a_table_in_markdown() -> None:
    section = Section(
        "steps", {"what": "which one", "ms": "median"}, note="one left out", terms={"a|b": "both"}
    )
    section.rows += [{"what": "a|b", "ms": 3.14159}, {"what": "c"}]
    assert section.markdown() == [
        *("### steps", ""),
        *("| what | ms |", "| --- | ---: |", "| a\\|b | 3.142 |", "| c | - |", ""),
        *("one left out", ""),
        *("- `what`: which one", "- `ms`: median", "- `a|b`: both", ""),
    ]
    assert "# a|b   both" in section.lines()
