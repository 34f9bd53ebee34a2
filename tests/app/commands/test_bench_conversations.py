"""moss-voice bench --conversations: users at once, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import main
from engine_runtime.bench import batched_codec, batched_decode, ceilings, simultaneous
from engine_runtime.bench.simultaneous import COLUMNS
from engine_runtime.engine import Engine
from engine_runtime.errors import FlowCacheError
from engine_runtime.table import Section

QUESTION = Path(__file__).resolve().parents[2] / "data" / "speech" / "question.wav"


@pytest.mark.slow
def test_users_at_once(
    random_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ceilings, "CPU_COPY_BYTES", 1_000_000)
    monkeypatch.setattr(ceilings, "CPU_MATRIX", 64)
    monkeypatch.setattr(simultaneous, "TURN_S", (0.6, 0.9))
    options: tuple[str, ...] = (
        "--in",
        str(QUESTION),
        "--conversation-seconds",
        "2",
        "--processor-time",
        "--json",
    )
    options += ("--markdown", str(tmp_path / "report.md"))
    assert main(["bench", "--bundle", str(random_bundle), "--conversations", "1,2", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    document = json.loads(lines[-1])
    assert document["environment"]["clock"].startswith("processor time")
    phases = [row["phase"] for row in document["memory_course"]["rows"]]
    assert phases == ["before", "load", "ceilings", "conversations"]
    rows = document["simultaneous conversations"]["rows"]
    assert [row["users"] for row in rows] == [1, 2]
    assert all(row["failed"] == 0 and row["compared"] == row["equal"] >= 1 for row in rows)
    assert "\n### simultaneous conversations\n" in (tmp_path / "report.md").read_text(encoding="utf-8")
    for name, meaning in COLUMNS.items():
        assert any(line.startswith(f"# {name}") and line.endswith(meaning) for line in lines)


@pytest.mark.slow
def test_a_table_that_fails_loses_no_other(
    random_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> Section:
        raise FlowCacheError("The flow runs 4 replies at once.", "Wait until one of them has ended.")

    monkeypatch.setattr(ceilings, "CPU_COPY_BYTES", 1_000_000)
    monkeypatch.setattr(ceilings, "CPU_MATRIX", 64)
    monkeypatch.setattr(simultaneous, "TURN_S", (0.6, 0.9))
    monkeypatch.setattr(Engine, "gains_from_batches", True)
    monkeypatch.setattr(batched_decode, "BATCHES", ((1, 16), (2, 16)))
    monkeypatch.setattr(batched_codec, "measure_batched_flow", fail)
    chunks = Section("chunks of the vocoder", {"replies": "at once"})
    monkeypatch.setattr(batched_codec, "measure_batched_vocoder", lambda *_: chunks)
    options: tuple[str, ...] = (
        "--in",
        str(QUESTION),
        "--conversation-seconds",
        "1",
        "--processor-time",
        "--repeats",
        "2",
    )
    words = ["bench", "--bundle", str(random_bundle), "--conversations", "1", *options, "--json"]
    assert main(words) == 1
    output = capsys.readouterr().out
    document = json.loads(output.splitlines()[-1])
    assert document["flow"]["note"].startswith("not measured: The flow runs 4 replies at once.")
    assert {"ceilings", "chunks of the vocoder", "simultaneous conversations"} <= document.keys()
    assert "== chunks of the vocoder" in output


def test_a_question_that_cannot_be_read_is_refused_before_loading(
    random_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("engine_runtime.engine.load_stages", lambda *_, **__: pytest.fail("loaded"))
    (tmp_path / "q.wav").write_bytes(b"")
    words = ["bench", "--bundle", str(random_bundle), "--in", str(tmp_path / "q.wav")]
    for more in (["--conversations", "2"], []):
        assert main([*words, *more]) == 1
        assert "is empty" in capsys.readouterr().err


@pytest.mark.parametrize("numbers", ["0", "1,", "x", "1,,2", "5000", "1;2"])
def test_numbers_of_users_are_checked(numbers: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--conversations", numbers])
    assert "is not an integer from 1 to 4096" in capsys.readouterr().err
