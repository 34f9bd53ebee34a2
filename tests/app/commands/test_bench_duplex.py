"""`moss-voice bench --duplex` on a tiny random bundle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import main


@pytest.mark.slow
def test_a_round_of_one_group_is_measured(random_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--duplex", "--quick", "--groups", "pauses", "--duplex-seed", "2", "--json"]
    assert main(["bench", "--bundle", str(random_bundle), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    document = json.loads(lines[-1])
    assert document["environment"]["seed"] == 2
    (conversation,) = document["conversations"]
    assert conversation["group"] == "pauses"
    assert conversation["segments"] == {"turn": 3}
    assert document["panels"]["clean"]["shares"]["R_R"]["total"] == 3
    assert any(line.startswith("# R_R ") for line in lines)
    assert "== targets" in lines
