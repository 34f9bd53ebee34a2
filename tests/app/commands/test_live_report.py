from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from app.commands.live_report import add_report_options, live_report
from engine_runtime.errors import ExportError
from engine_runtime.table import Cell, Section
from tests.tools.result_tables import read_result


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_report_options(parser)
    arguments = parser.parse_args(words)
    arguments.words = ["bench", *words]
    return arguments


def test_it_is_printed_at_once_and_written_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.md"
    section = Section("steps", {"rows": "before it"}, [{"rows": 5}])
    with live_report("bench", options("--markdown", str(file))) as report:
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


def test_a_result_has_the_command_and_every_table_with_its_part(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    with live_report("bench", options("--json", str(file))) as report:
        report.facts({"processor": "a CPU", "torch": "2.11", "weights": "fp8"})
        report.add(Section("targets", {"target": "name"}, [{"target": "rtf"}]))
        report.heading("weights: fp8")
        report.facts({"flow": "paged"})
        report.add(Section("steps", {"rows": "before it"}, [{"rows": 5}]))
        report.remark("quiet")
    document = read_result(file)
    assert document["command"] == f"moss-voice bench --json {file}"
    assert document["machine"] == {"processor": "a CPU"}
    assert document["versions"]["torch"] == "2.11"
    assert document["settings"] == {"weights": "fp8", "weights: fp8: flow": "paged"}
    assert document["remarks"] == ["quiet"]
    assert [(table["part"], table["title"]) for table in document["tables"]] == [
        ("", "targets"),
        ("weights: fp8", "steps"),
    ]


def test_without_a_file_the_document_ends_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    with live_report("bench", options("--json")) as report:
        report.document["replies"] = 3
        report.facts({"device": "cpu"})
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"replies": 3}


def test_one_file_cannot_be_both(tmp_path: Path) -> None:
    file = tmp_path / "report"
    file.touch()
    both = options("--json", str(file), "--markdown", str(file))
    with pytest.raises(ExportError, match="are the same file"), live_report("bench", both):
        pass


def _fail_after(file: Path, facts: dict[str, Cell]) -> None:
    with live_report("bench", options("--markdown", str(file))) as report:
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
