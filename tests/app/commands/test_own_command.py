"""Commands in processes of their own: their result, their error, and their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.commands.own_command import result_of, run_command
from engine_runtime.errors import MossVoiceError


@pytest.mark.parametrize(
    ("out", "document"),
    [
        ("", None),
        ("a table\n", None),
        ('{"a": 1}\n{"b": 2}\n', {"b": 2}),
        ('{"a": 1}\n{broken\na line\n', {"a": 1}),
        ("[1, 2]\n", None),
    ],
)
def test_the_document_is_the_last_one(out: str, document: object) -> None:
    assert result_of(["x"], 0, out, "", 1.0).document == document


@pytest.mark.parametrize(
    ("status", "err", "error"),
    [
        (0, "moss-voice: a note\n", ""),
        (1, "progress\nmoss-voice: It is damaged.\n  missing: a\nCopy it again.\n",
         "It is damaged.\n  missing: a\nCopy it again."),
        (1, "moss-voice: a note\nmoss-voice: It is damaged.\n", "It is damaged."),
        (-9, "", "It ended with signal 9 and wrote nothing."),
        (134, "terminate called\nAborted\n", "It ended with status 134: Aborted"),
    ],
)  # fmt: skip
def test_the_error_is_the_programs_own_sentence(status: int, err: str, error: str) -> None:
    assert result_of(["x"], status, "", err, 1.0).error == error


@pytest.mark.slow
def test_a_command_runs_in_a_process_of_its_own(random_bundle: Path, tmp_path: Path) -> None:
    seen: list[float] = []
    words = ["inspect", str(random_bundle), "--json"]
    result = run_command(words, tmp_path / "log", lambda seconds, line: seen.append(seconds))
    assert (result.status, result.error) == (0, "")
    assert result.document is not None
    assert result.document["name"] == "random"
    assert seen
    assert (tmp_path / "log.out").read_text().startswith("{")
    failed = run_command(["inspect", str(tmp_path)], tmp_path / "log")
    assert (failed.status, failed.document) == (1, None)
    assert "bundle.toml" in failed.error


def test_an_interpreter_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(MossVoiceError, match="--engine-python"):
        run_command(["doctor"], tmp_path / "log", python=tmp_path)


def test_the_child_ends_with_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the signal reached the parent alone."""
    pid = tmp_path / "pid"
    code = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    real = subprocess.Popen

    def start(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        return real([sys.executable, "-c", code], **options)  # type: ignore[call-overload]

    def interrupt(seconds: float, line: str) -> None:
        if pid.exists() and pid.read_text():
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(KeyboardInterrupt):
        run_command(["bench"], tmp_path / "log", interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), signal.SIGTERM)


def test_progress_shows_the_latest_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    code = (
        "import sys, time; sys.stderr.write('load: 4 %\\rload: 90 %\\n'); sys.stderr.flush(); time.sleep(0.4)"
    )
    real = subprocess.Popen
    monkeypatch.setattr(
        subprocess,
        "Popen",
        lambda command, **options: real([sys.executable, "-c", code], **options),
    )
    start_s = time.monotonic()
    result = run_command(["bench"], tmp_path / "log", lambda seconds, line: lines.append(line))
    assert lines[-1] == "load: 90 %"
    assert 0.3 < result.seconds <= time.monotonic() - start_s + 0.1
