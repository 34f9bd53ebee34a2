"""Writes the tables of RESULTS.md that are of recorded results anew.

    python -m tests.tools.result_tables [FILE]

In: a Markdown file, and the files in `results/` beside it (engine_runtime/bench/result_file.py). A table of
them stands below a line that says of which file it is, of which table, and which columns it shows (all
without the last part); a part of the report is named if several have a table of that title:

    <!-- results/h200.json: weights: fp8 / decode step: cached_rows, ms, ratio -->

Out: the file with each such table as it is in the result. A test fails where one differs.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from engine_runtime.bench import result_file
from engine_runtime.bench.result_file import ResultError, read_result, table_of

DOCUMENT = Path(result_file.__file__).with_name("RESULTS.md")
_MARK = re.compile(
    r"^<!-- (?P<file>results/[\w.-]+\.json): "
    r"(?:(?P<part>.+) / )?(?P<title>[^/:]+)(?:: (?P<columns>[^:]+))? -->$"
)


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
    return section.markdown_table()


if __name__ == "__main__":
    document = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCUMENT
    document.write_text(rendered(document.read_text("utf-8"), document.parent), encoding="utf-8")
