"""`moss-voice bench --duplex` on a tiny random bundle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import main
from app.duplex.scenario_folder import read_scenarios


@pytest.mark.slow
def test_a_round_of_one_group_is_measured_and_written(
    random_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--duplex", "--quick", "--groups", "pauses", "--duplex-seed", "2", "--json"]
    options.append("--duplex-cpu-time")
    assert main(["bench", "--bundle", str(random_bundle), *options, "--duplex-out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    document = json.loads(lines[-1])
    assert document["environment"]["seed"] == 2
    assert document["environment"]["clock"] == "virtual, by processor time"
    (conversation,) = document["conversations"]
    assert conversation["group"] == "pauses"
    assert conversation["segments"] == {"turn": 3}
    assert document["panels"]["clean"]["shares"]["R_R"]["total"] == 3
    assert any(line.startswith("# R_R ") for line in lines)
    assert "# headphones, no noise: 1 conversations, " in "\n".join(lines)
    assert "== targets" in lines
    (written,) = read_scenarios(tmp_path)
    assert [segment.kind for segment in written.segments] == ["turn"] * 3


def test_a_folder_without_scenarios_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--duplex", "--duplex-in", str(tmp_path)]) == 1
    assert "There is no WAV or FLAC file" in capsys.readouterr().err


def test_the_help_describes_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    assert '"kind": "turn"' in capsys.readouterr().out
