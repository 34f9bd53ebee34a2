"""Timings as CSV and as Chrome trace."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from app.session.trace import write_chrome_trace, write_csv
from engine_runtime.errors import ExportError
from engine_runtime.timing import TimingEvent

EVENTS = [
    TimingEvent("step", 1, 2_000_000, 500_000, "engine", {"index": 0, "mode": "audio"}),
    TimingEvent("prefill", 1, 1_000_000, 750_000, "engine", {"rows": 12}),
    TimingEvent("commit", 1, 1_900_000, 0, "engine"),
    TimingEvent("playback_buffer", 1, 3_000_000, 0, "dialog", {"level_ms": 321.5}),
]


def test_csv_has_a_line_per_event_and_a_column_per_attribute(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", EVENTS)
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["prefill", "commit", "step", "playback_buffer"]
    assert rows[0] == {
        "name": "prefill", "turn_id": "1", "start_ms": "0.000", "duration_ms": "0.750", "thread": "engine",
        "rows": "12", "index": "", "mode": "", "level_ms": "",
    }  # fmt: skip
    assert rows[2]["start_ms"] == "1.000"


def test_chrome_trace_has_spans_instants_and_a_counter(tmp_path: Path) -> None:
    write_chrome_trace(tmp_path / "t.json", EVENTS)
    entries = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert [entry["ph"] for entry in entries] == ["M", "M", "X", "i", "X", "C"]
    assert {entry["args"]["name"]: entry["tid"] for entry in entries[:2]} == {"engine": 1, "dialog": 2}
    prefill, commit, step, level = entries[2:]
    assert (prefill["ts"], prefill["dur"], prefill["args"]) == (0.0, 750.0, {"turn_id": 1, "rows": 12})
    assert commit["ts"] == 900.0
    assert step["cat"] == "turn 1"
    assert level["args"] == {"ms": 321.5}


def test_nothing_measured_is_an_empty_file(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", [])
    write_chrome_trace(tmp_path / "t.json", [])
    assert (tmp_path / "t.csv").read_text() == "name,turn_id,start_ms,duration_ms,thread\n"
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"] == []


def test_a_missing_folder_is_an_export_error(tmp_path: Path) -> None:
    for write in (write_csv, write_chrome_trace):
        with pytest.raises(ExportError, match="no folder"):
            write(tmp_path / "missing" / "t", EVENTS)
