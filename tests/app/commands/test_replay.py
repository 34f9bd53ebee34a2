"""moss-voice replay: what it prints, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli import main


def replayed(differences: list[dict[str, Any]]) -> dict[str, Any]:
    return {"folder": "x", "turns": 2, "is_same": not differences, "differences": differences}


def test_the_same_conversation_is_status_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("app.session.replay.replay", lambda *_, **__: replayed([]))
    assert main(["replay", str(tmp_path), "--json"]) == 0
    *lines, document = capsys.readouterr().out.splitlines()
    assert lines == ["turns: 2, all the same"]
    assert json.loads(document) == replayed([])


def test_differences_are_lines_and_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    differences = [
        {"turn": 1, "what": "ReplyFinished.text", "recorded": "five", "replayed": "six"},
        {"turn": 2, "what": "reply", "recorded": [[1, 2], [3, 4]], "replayed": None},
    ]
    monkeypatch.setattr("app.session.replay.replay", lambda *_, **__: replayed(differences))
    assert main(["replay", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "1. ReplyFinished.text: 'five' recorded, 'six' now",
        "2. the reply has other codes (2 tokens recorded, 0 tokens now)",
        "turns: 2, not the same",
    ]


def test_a_folder_that_is_no_conversation_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(tmp_path)]) == 1
    assert "is not a recorded conversation" in capsys.readouterr().err
