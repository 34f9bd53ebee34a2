from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from engine_runtime.bench.result_file import ResultFile
from engine_runtime.table import Cell, Section
from tests.tools.result_tables import DOCUMENT, ResultError, read_result, rendered, table_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    result = ResultFile("moss-voice bench", "moss-voice bench --runs 8", {"processor": "a CPU"})
    columns = {"rows": "before it", "ms": "median", "ratio": "ms / floor"}
    for weights, ms in ("native", 3.75), ("fp8", 2.25):
        rows: list[dict[str, Cell]] = [
            {"rows": 512, "ms": ms, "ratio": 1.1},
            {"rows": 2048, "ms": 2 * ms, "ratio": 1.2},
        ]
        steps = Section("decode step", columns, rows)
        result.tables.append((f"weights: {weights}", steps))
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "h200.json").write_text(result.text(), encoding="utf-8")
    return tmp_path


MARK = "<!-- results/h200.json: weights: fp8 / decode step: rows, ms | 512 -->"
TABLE = "| rows | ms |\n| --- | ---: |\n| 512 | 2.25 |\n"


def test_a_table_is_that_of_the_result(folder: Path) -> None:
    stale = f"# Results\n\n{MARK}\n| rows | ms |\n|---|---|\n| 512 | 9 |\n\nThe rest.\n"
    expected = f"# Results\n\n{MARK}\n{TABLE}\nThe rest.\n"
    assert rendered(stale, folder) == expected
    assert rendered(expected, folder) == expected
    assert rendered(f"{MARK}\n", folder) == f"{MARK}\n{TABLE}"


def test_without_columns_all_are_shown(folder: Path) -> None:
    mark = "<!-- results/h200.json: weights: native / decode step -->"
    assert "| rows | ms | ratio |" in rendered(mark, folder)


def test_rows_are_shown_in_the_order_of_the_mark(folder: Path) -> None:
    mark = "<!-- results/h200.json: weights: native / decode step: ms | 7.5 | 3.75 -->"
    assert rendered(mark, folder).endswith("| ms |\n| --- |\n| 7.5 |\n| 3.75 |\n")


@pytest.mark.parametrize(
    ("mark", "problem"),
    [
        ("<!-- results/h200.json: decode step -->", "has 2 tables 'decode step'"),
        ("<!-- results/h200.json: weights: fp8 / decode step: us -->", "has no column us"),
        ("<!-- results/h200.json: weights: fp8 / decode step | 1024 -->", "has no row 1024"),
        ("<!-- results/a100.json: decode step -->", r"a100\.json is no result"),
        ("<!-- results/h200.json -->", "does not name"),
    ],
)
def test_a_mark_that_names_nothing_is_an_error(folder: Path, mark: str, problem: str) -> None:
    with pytest.raises(ResultError, match=problem):
        rendered(mark, folder)


def test_the_tables_of_results_are_those_of_the_recorded_results() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert rendered(text, DOCUMENT.parent) == text, "run python -m tests.tools.result_tables"


def _document() -> dict[str, Any]:
    result = ResultFile("moss-voice bench", "moss-voice bench --runs 8")
    result.facts |= {"processor": "a CPU", "cores": 2, "torch": "2.11", "weights": "native"}
    result.remarks.append("quiet")
    columns = {"rows": "before it", "ms": "median"}
    result.tables += [
        ("weights: native", Section("steps", columns, [{"rows": 512, "ms": 3.5}, {"rows": 4096}])),
        ("weights: fp8", Section("steps", columns, [{"rows": 512, "ms": float("inf")}])),
        ("weights: fp8", Section("flow", {}, note="not measured: too little memory")),
    ]
    return json.loads(result.text())


def test_a_table_is_found_by_title_and_part() -> None:
    document = _document()
    assert table_of(document, "steps", "weights: native").markdown_table() == [
        "| rows | ms |",
        "| --- | ---: |",
        "| 512 | 3.5 |",
        "| 4096 | - |",
    ]
    with pytest.raises(ResultError, match="has 2 tables 'steps'"):
        table_of(document, "steps")
    with pytest.raises(ResultError, match="has 0 tables 'vocoder'"):
        table_of(document, "vocoder")


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("schema",), 2, "its schema is not 1"),
        (("command",), "", "it has no command"),
        (("date",), "yesterday", "its date is not YYYY-MM-DD"),
        (("machine",), {}, "its machine have no processor"),
        (("versions",), {"moss-voice": []}, "its versions are not plain values"),
        (("tables",), [], "it has no tables"),
        (("tables", 0, "title"), 3, "a table has other fields"),
        (("tables", 0, "columns", "ms"), "", "steps does not define ms"),
        (("tables", 0, "rows", 0, "us"), 3500, "steps has values without a column: us"),
        (("tables", 0, "rows", 0, "ms"), [3.5], "steps has a row that is not of plain values"),
        (("tables", 2, "note"), "", "flow is missing without a reason"),
    ],
)
def test_what_is_no_result(path: tuple[str | int, ...], value: object, problem: str, tmp_path: Path) -> None:
    document = deepcopy(_document())
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file = tmp_path / "result.json"
    file.write_text(json.dumps(document))
    with pytest.raises(ResultError, match=problem):
        read_result(file)


def test_what_is_no_json_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(ResultError, match=r"result\.json is no result"):
        read_result(tmp_path / "result.json")


def test_the_recorded_results_are_results() -> None:
    for file in (DOCUMENT.parent / "results").glob("*.json"):
        read_result(file)
