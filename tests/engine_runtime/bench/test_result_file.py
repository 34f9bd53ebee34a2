from __future__ import annotations

import json
from typing import Any

from engine_runtime.bench.result_file import ResultFile
from engine_runtime.table import Section
from tests.tools.result_tables import problems_of


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


def test_facts_are_of_the_machine_versions_or_settings() -> None:
    document = _document()
    assert document["machine"] == {"processor": "a CPU", "cores": 2}
    assert set(document["versions"]) == {"moss-voice", "torch"}
    assert document["settings"] == {"weights": "native"}
    assert document["tables"][1]["rows"] == [{"rows": 512, "ms": "inf"}]
    assert not list(problems_of(document))
