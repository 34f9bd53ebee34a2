"""Progress for another program: lines of JSON."""

from __future__ import annotations

import json
import time

import pytest

from app.progress import (
    PROBLEM_VARIABLE,
    json_document,
    line_printer,
    print_problem,
    printed_problem,
    progress_lines,
)
from engine_runtime.errors import MossVoiceError, Problem


def test_lines_come_now_and_then_and_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    show = line_printer("download")
    for done in range(1, 101):
        now_s += 0.05
        show(done, 100)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1] == {"step": "download", "done": 100, "total": 100}
    assert 20 <= len(lines) <= 26


def test_a_document_is_printed_as_it_was_when_the_command_failed(capsys: pytest.CaptureFixture[str]) -> None:
    def fail_late() -> None:
        with json_document(True) as document:
            document["measured"] = 3
            raise MossVoiceError("Too late.", "Begin again.")

    with pytest.raises(MossVoiceError, match="Too late"):
        fail_late()
    assert json.loads(capsys.readouterr().out) == {
        "measured": 3,
        "error": "Too late. Begin again.",
        "problem": {"cause": "Too late.", "remedy": "Begin again.", "values": {}},
    }
    with pytest.raises(KeyboardInterrupt), json_document(True) as document:
        raise KeyboardInterrupt(15)
    assert json.loads(capsys.readouterr().out) == {"error": "KeyboardInterrupt: 15"}
    with json_document(False) as document:
        document["measured"] = 4
    assert capsys.readouterr().out == ""


def test_a_share_is_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_lines("check") as show:
        show(1.0)
    assert json.loads(capsys.readouterr().out) == {"step": "check", "done": 1.0, "total": 1.0}


def test_a_problem_is_printed_for_a_parent_that_asks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem("{file} is full.", "Free some space.", file="/a{b}")
    print_problem(problem)
    assert capsys.readouterr().out == ""
    monkeypatch.setenv(PROBLEM_VARIABLE, "1")
    print_problem(problem)
    assert printed_problem(f"a table\n{capsys.readouterr().out}") == problem
    assert printed_problem('{"a": 1}\n{broken\n[1]\n{"problem": 3}\n') is None
