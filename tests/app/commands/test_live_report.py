from __future__ import annotations

from pathlib import Path

import pytest

from app.commands.live_report import live_report
from engine_runtime.table import Section


def test_it_is_printed_at_once_and_written_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.md"
    section = Section("steps", {"rows": "before it"}, [{"rows": 5}])
    with live_report("bench", file) as report:
        report.facts({"device": "cpu"})
        report.heading("weights: native")
        assert report.add(section) == section.document()
        report.remark("one sentence", "another one")
        printed = capsys.readouterr().out.splitlines()
        assert not file.exists()
    assert printed == [
        "# device: cpu",
        "",
        "# weights: native",
        *section.lines(),
        "# one sentence",
        "# another one",
    ]
    assert file.read_text(encoding="utf-8").splitlines() == [
        *("# bench", "", "- device: cpu", "", "## weights: native", ""),
        *section.markdown(),
        *("one sentence", "", "another one"),
    ]


def _fail_after(file: Path, facts: dict[str, object]) -> None:
    with live_report("bench", file) as report:
        if facts:
            report.facts(facts)
        raise ValueError("it failed")


def test_a_measurement_that_fails_loses_nothing(tmp_path: Path) -> None:
    file = tmp_path / "report.md"
    with pytest.raises(ValueError, match="it failed"):
        _fail_after(file, {"device": "cpu"})
    assert file.read_text(encoding="utf-8") == "# bench\n\n- device: cpu\n"


def test_a_measurement_that_did_not_begin_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it failed"):
        _fail_after(tmp_path / "report.md", {})
    assert not list(tmp_path.iterdir())
