from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from engine_runtime.bench import result_file
from engine_runtime.bench.result_file import ResultError, ResultFile, problems_of, read_result, table_of
from engine_runtime.table import Section


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
    return json.loads(result.text())  # type: ignore[no-any-return]


def test_facts_are_of_the_machine_versions_or_settings() -> None:
    document = _document()
    assert document["machine"] == {"processor": "a CPU", "cores": 2}
    assert set(document["versions"]) == {"moss-voice", "torch"}
    assert document["settings"] == {"weights": "native"}
    assert document["tables"][1]["rows"] == [{"rows": 512, "ms": "inf"}]
    assert not list(problems_of(document))


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
    for file in (Path(result_file.__file__).parent / "results").glob("*.json"):
        read_result(file)
