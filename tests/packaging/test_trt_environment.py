from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


@pytest.fixture
def script(scripts: dict[str, ModuleType]) -> ModuleType:
    return scripts["trt_environment"]


def _pins(script: ModuleType) -> dict[str, str]:
    lines = script.CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def test_the_pinned_set_is_what_tensorrt_llm_requires(script: ModuleType) -> None:
    pins = _pins(script)
    theirs = script.required(script.REQUIREMENTS.read_text(encoding="utf-8").splitlines())
    assert len(theirs) > 10
    for wanted in map(Requirement, theirs):
        assert wanted.specifier.contains(pins[canonicalize_name(wanted.name)]), wanted


def test_the_pinned_set_is_within_our_own_ranges(script: ModuleType) -> None:
    pins = _pins(script)
    ours = [Requirement(line) for line in script.own_requirements()]
    assert {"torch", "pytest", "transformers", "kaldi-native-fbank"} <= {wanted.name for wanted in ours}
    for wanted in ours:
        if wanted.marker is None or wanted.marker.evaluate({"python_version": "3.12"}):
            assert wanted.specifier.contains(pins[canonicalize_name(wanted.name)]), wanted


def test_what_has_no_wheel_on_pypi_is_not_asked_for(script: ModuleType) -> None:
    lines = ["# a remark", "", "torch>=2.9.1", "tensorrt~=10.14.1", "tensorrt-llm==1.2.1", "tensorrt-rtx"]
    assert script.required(lines) == ["torch>=2.9.1"]
    left_out = ("tensorrt-llm", "moss-voice", "ray", "faster-whisper")
    assert not [line for line in script.own_requirements() if line.startswith(left_out)]


def test_without_a_python_312_it_says_so(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "_version_of", lambda python: "3.13")
    monkeypatch.setattr(sys, "argv", ["trt_environment.py", "test"])
    assert script.main() == script.CANNOT
    assert "Python 3.12" in capsys.readouterr().err


def test_an_older_python_hands_over_to_the_one_it_found(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Ubuntu 22.04, whose Python 3.10 has no tomllib."""
    ran: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        return subprocess.CompletedProcess(command, 7)

    monkeypatch.setattr(script, "find_python", lambda: "python3.12")
    monkeypatch.setattr(script.subprocess, "run", run)
    monkeypatch.setattr(sys, "version_info", (3, 10, 12, "final", 0))
    monkeypatch.setattr(sys, "argv", ["trt_environment.py", "resolve"])
    assert script.main() == 7
    assert ran == [["python3.12", "trt_environment.py", "resolve"]]


def test_it_finds_the_version_of_an_interpreter(script: ModuleType, tmp_path: Path) -> None:
    assert script._version_of(sys.executable) == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert script._version_of(str(tmp_path / "nowhere")) is None


def test_what_was_resolved_is_shown_and_a_conflict_is_reported(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    statuses = [0, 1]
    entries = [
        {"metadata": {"name": Requirement(line).name, "version": "7.0"}}
        for line in script.required(script.REQUIREMENTS.read_text(encoding="utf-8").splitlines())
    ]

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        report = Path(command[command.index("--report") + 1])
        report.write_text(json.dumps({"install": entries}))
        return subprocess.CompletedProcess(command, statuses.pop(0))

    monkeypatch.setattr(subprocess, "run", run)
    assert script.resolve("python") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["torch", "7.0", "meets", "torch>=2.9.1,<=2.10.0a0"]
    assert lines[-1].startswith(f"resolved: {len(entries)} packages")
    assert script.resolve("python") == 1
    assert "conflicting requirements" in capsys.readouterr().err


def test_the_tests_it_runs_are_there_and_others_can_be_chosen(
    script: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    statuses = [0, 5, 0]

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, statuses.pop(0))

    monkeypatch.setattr(subprocess, "run", run)
    assert script.run_tests([]) == 5
    assert [command[command.index("-m", 3) + 1] for command in commands] == ["not slow", "slow"]
    paths = [word for command in commands for word in command if word.startswith("tests")]
    assert {"tests/engine_runtime", "tests/app", "tests/engine_runtime/tensorrt"} <= set(paths)
    assert all((repository / path).exists() for path in paths)
    ignored = [word.partition("=")[2] for word in commands[1] if word.startswith("--ignore=")]
    assert len(ignored) == len(script.ONLY_ORDER)
    assert all((repository / path).is_file() for path in ignored)
    assert script.run_tests(["tests"]) == 0
    assert commands[2][-1] == "tests"
    assert "slow" not in commands[2]


@pytest.mark.parametrize("command", ["install", "test"])
def test_the_environment_is_made_and_only_one_command_tests_it(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    happened: list[str] = []
    monkeypatch.setattr(script, "find_python", lambda: "python3.12")
    monkeypatch.setattr(script, "install", lambda python: happened.append(f"install with {python}"))
    monkeypatch.setattr(script, "run_tests", lambda words: happened.append("test") or 5)
    monkeypatch.setattr(sys, "argv", ["trt_environment.py", command])
    assert script.main() == (5 if command == "test" else 0)
    assert happened == ["install with python3.12", "test"][: 1 + (command == "test")]
