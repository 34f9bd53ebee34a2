"""The command: its folder, its choice of steps, what it prints, and that it goes on where it stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from app import process
from app.cli import main
from app.commands import acceptance
from app.commands.acceptance_steps import STATE
from app.commands.own_command import CommandResult
from tests.factories.acceptance import run_here

QUICK = ("files", "tensors")


class Commands:
    """Runs commands in this process, and notes them."""

    def __init__(self) -> None:
        self.words: list[Sequence[str]] = []
        self.interrupt = ""

    def __call__(
        self, words: Sequence[str], log: Path, progress: object = None, python: Path | None = None
    ) -> CommandResult:
        assert log.parent.name == acceptance.LOGS
        self.words.append(words)
        if self.interrupt and self.interrupt in words:
            raise KeyboardInterrupt
        return run_here([], *words, python=python)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    found = Commands()
    monkeypatch.setattr(acceptance, "run_command", found)
    return found


def words(bundle: Path, out: Path, *more: str) -> list[str]:
    return ["acceptance", "--bundle", str(bundle), "--out", str(out), *more]


def state(out: Path) -> dict[str, Any]:
    return json.loads((out / STATE).read_text())["steps"]


def test_a_report_is_written_and_finished_steps_are_not_repeated(
    random_bundle: Path, tmp_path: Path, commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(words(random_bundle, out, "--only", *QUICK, "--json")) == 0
    printed = capsys.readouterr().out
    document = json.loads(printed.splitlines()[-1])
    assert (document["result"], document["passed"]) == ("passed", 2)
    assert "passed   tensors" in printed
    assert json.loads((out / "report.json").read_text())["steps"] == document["steps"]
    assert str(out) not in (out / "report.txt").read_text()
    assert [command[0] for command in commands.words] == ["inspect", "inspect"]
    assert main(words(random_bundle, out, "--only", *QUICK)) == 0
    assert capsys.readouterr().out.count("(finished before)") == 2
    assert len(commands.words) == 2
    assert main(words(random_bundle, out, "--only", *QUICK, "--again", "tensors")) == 0
    assert "files" in capsys.readouterr().out
    assert len(commands.words) == 3


def test_a_failure_is_the_exit_status_and_names_the_next_step(
    random_bundle: Path, tmp_path: Path, commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["acceptance", "--bundle", "moss-speech", "--out", str(tmp_path), "--only", "files"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED   files" in printed
    assert "-> Add --fetch" in printed
    assert commands.words == []


def test_ctrl_c_keeps_what_is_finished(
    random_bundle: Path, tmp_path: Path, commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.interrupt = "--tensors"
    assert main(words(random_bundle, tmp_path, "--only", *QUICK)) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert list(state(tmp_path)) == ["files"]
    commands.interrupt = ""
    assert main(words(random_bundle, tmp_path, "--only", *QUICK)) == 0
    assert [("--tensors" in command) for command in commands.words] == [False, True, True]


def test_names_of_steps_are_checked_and_listed(
    random_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(random_bundle, tmp_path / "out", "--only", "nothing")) == 1
    assert "There is no step nothing. Choose from: environment, files" in capsys.readouterr().err
    assert main(["acceptance", "--bundle", str(random_bundle)]) == 1
    assert "--out DIR" in capsys.readouterr().err
    assert main(["acceptance", "--bundle", str(random_bundle), "--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [
        "environment", "files", "tensors", "memory", "kernels", "verify", "bench", "duplex", "trt-tiny",
        "trt-convert", "trt-quantize", "trt-build", "trt-inspect", "trt-verify", "trt-bench", "soak",
    ]  # fmt: skip
    assert not (tmp_path / "out").exists()


def test_a_group_of_steps_is_left_out_by_its_name(
    random_bundle: Path, tmp_path: Path, commands: Commands
) -> None:
    left = ["environment", "memory", "kernels", "verify", "bench", "duplex", "trt"]
    assert main(words(random_bundle, tmp_path, "--skip", *left)) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    reasons = {step["name"]: step["reason"] for step in report["steps"]}
    assert reasons["trt-build"] == "not wanted this time"
    assert reasons["files"] == ""


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--backend", "trtllm", "--engine", "x"], "Leave out --backend and --engine"),
        (["--fetch", "--from", "x"], "Leave one of them out"),
    ],
)
def test_options_that_do_not_go_together(
    random_bundle: Path, tmp_path: Path, more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(random_bundle, tmp_path, *more)) == 1
    assert said in capsys.readouterr().err


def test_a_model_to_fetch_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["acceptance", "--out", str(tmp_path), "--fetch"]) == 1
    assert "--bundle moss-speech" in capsys.readouterr().err


def test_two_acceptances_do_not_share_a_folder(
    random_bundle: Path, tmp_path: Path, commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "lock").open("wb") as lock:
        assert process.take_lock(lock.fileno())
        assert main(words(random_bundle, tmp_path, "--only", "files")) == 1
    assert "Another acceptance run uses" in capsys.readouterr().err
    assert main(words(random_bundle, tmp_path, "--only", "files")) == 0


@pytest.mark.slow
def test_a_killed_acceptance_goes_on(random_bundle: Path, tmp_path: Path) -> None:
    """Killed without a chance to clean up, while a step runs."""
    command = [sys.executable, "-m", "app", *words(random_bundle, tmp_path, "--only", *QUICK)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        give_up_s = time.monotonic() + 60
        while not (tmp_path / STATE).is_file() and time.monotonic() < give_up_s:
            time.sleep(0.01)
        os.kill(first.pid, signal.SIGKILL)
    finished = set(state(tmp_path))
    assert "files" in finished
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert "(finished before)" in again.stdout.splitlines()[0]
    assert set(state(tmp_path)) == set(QUICK)
