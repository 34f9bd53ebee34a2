"""A command in a process of its own: its lines, its error, its end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QObject
from pytestqt.qtbot import QtBot

from app.gui.common.child_command import ChildCommand
from engine_runtime.errors import Problem

pytestmark = pytest.mark.slow


def test_lines_of_json_are_read(qtbot: QtBot, host: QObject, random_bundle: Path) -> None:
    lines: list[dict[str, Any]] = []
    command = ChildCommand(host, "inspect", str(random_bundle), "--json", "--progress")
    command.line.connect(lines.append)
    with qtbot.waitSignal(command.ended) as ended:
        pass
    assert ended.args == [None]
    assert lines[-2] == {"step": "check", "done": 1.0, "total": 1.0}
    assert lines[-1]["path"] == str(random_bundle)


def test_lines_that_are_no_json_are_passed_over(qtbot: QtBot, host: QObject) -> None:
    lines: list[dict[str, Any]] = []
    said = r"print('{no json}\n{\"a\": 1}\n{')"
    command = ChildCommand(host, program=(sys.executable, "-c", said))
    command.line.connect(lines.append)
    with qtbot.waitSignal(command.ended) as ended:
        pass
    assert (lines, ended.args) == ([{"a": 1}], [None])


def test_an_error_comes_as_values(qtbot: QtBot, host: QObject, tmp_path: Path) -> None:
    command = ChildCommand(host, "inspect", str(tmp_path / "none"))
    with qtbot.waitSignal(command.ended) as ended:
        pass
    (problem,) = ended.args
    assert problem.what_is_wrong == f"There is no bundle folder at {tmp_path / 'none'}."
    assert problem.values["path"] == str(tmp_path / "none")
    assert "bundle.toml" in problem.what_to_do


def test_a_process_that_cannot_be_started_is_an_error(
    qtbot: QtBot, host: QObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    ended: list[Problem] = []
    command = ChildCommand(host, "doctor")
    command.ended.connect(ended.append)
    qtbot.waitUntil(lambda: bool(ended))
    assert "No such file" in str(ended[0])


def test_a_closed_one_is_silent(qtbot: QtBot, host: QObject) -> None:
    command = ChildCommand(host, "doctor")
    ended: list[object] = []
    command.ended.connect(ended.append)
    command.kill()
    qtbot.wait(50)
    assert ended == []
