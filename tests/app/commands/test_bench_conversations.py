"""moss-voice bench --conversations: users at once, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import main
from engine_runtime.bench import bench_user, ceilings
from engine_runtime.bench.simultaneous import COLUMNS

QUESTION = Path(__file__).resolve().parents[2] / "data" / "speech" / "question.wav"


@pytest.mark.slow
def test_users_at_once(
    random_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ceilings, "CPU_COPY_BYTES", 1_000_000)
    monkeypatch.setattr(ceilings, "CPU_MATRIX", 64)
    monkeypatch.setattr(bench_user, "TURN_S", (0.6, 0.9))
    options = ("--in", str(QUESTION), "--conversation-seconds", "2", "--processor-time", "--json")
    assert main(["bench", "--bundle", str(random_bundle), "--conversations", "1,2", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    document = json.loads(lines[-1])
    assert document["environment"]["clock"].startswith("processor time")
    rows = document["simultaneous conversations"]["rows"]
    assert [row["users"] for row in rows] == [1, 2]
    assert all(row["failed"] == 0 and row["compared"] == row["equal"] >= 1 for row in rows)
    for name, meaning in COLUMNS.items():
        assert any(line.startswith(f"# {name}") and line.endswith(meaning) for line in lines)


@pytest.mark.parametrize("numbers", ["0", "1,", "x", "1,,2", "5000", "1;2"])
def test_numbers_of_users_are_checked(numbers: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--conversations", numbers])
    assert "is not an integer from 1 to 4096" in capsys.readouterr().err
