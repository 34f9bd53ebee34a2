from __future__ import annotations

from pathlib import Path

import pytest

from engine_runtime.bench.result_file import ResultError, ResultFile
from engine_runtime.table import Section
from tests.tools.result_tables import DOCUMENT, rendered


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    result = ResultFile("moss-voice bench", "moss-voice bench --runs 8", {"processor": "a CPU"})
    columns = {"rows": "before it", "ms": "median", "ratio": "ms / floor"}
    for weights, ms in ("native", 3.75), ("fp8", 2.25):
        steps = Section("decode step", columns, [{"rows": 512, "ms": ms, "ratio": 1.1}])
        result.tables.append((f"weights: {weights}", steps))
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "h200.json").write_text(result.text(), encoding="utf-8")
    return tmp_path


MARK = "<!-- results/h200.json: weights: fp8 / decode step: rows, ms -->"
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


@pytest.mark.parametrize(
    ("mark", "problem"),
    [
        ("<!-- results/h200.json: decode step -->", "has 2 tables 'decode step'"),
        ("<!-- results/h200.json: weights: fp8 / decode step: us -->", "has no column us"),
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
