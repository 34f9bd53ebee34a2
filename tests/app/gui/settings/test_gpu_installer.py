"""The processes of `moss-voice gpu`, played by small scripts."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from pytestqt.qtbot import QtBot

from app.gui.settings.gpu_page import GpuInstaller, make_installer
from app.gui.window.main_window import MainWindow

STATUS = {"state": "absent", "folder": "/nowhere", "download": 2_740_000_000}


def _program(folder: Path, monkeypatch: pytest.MonkeyPatch, **parts: str) -> Path:
    """Takes the place of the program: shell code for each part; what was asked for is in the file."""
    asked = folder / "asked"
    cases = "".join(f"{part}) {code};;\n" for part, code in parts.items())
    script = folder / "program"
    script.write_text(f'#!/bin/sh\necho "$@" >> {asked}\ncase "$4" in\n{cases}esac\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    return asked


def _say(*lines: object) -> str:
    return "\n".join(f"echo '{json.dumps(line)}'" for line in lines)


@pytest.fixture
def installer(qtbot: QtBot) -> GpuInstaller:
    return GpuInstaller()


def test_the_status_is_what_the_program_prints(
    qtbot: QtBot, installer: GpuInstaller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _program(tmp_path, monkeypatch, status=_say(STATUS))
    installer.query_status()
    assert not installer.is_installing
    qtbot.waitUntil(lambda: installer.status == STATUS)
    assert asked.read_text() == "-m app gpu status --json\n"


def test_an_installation_reports_its_progress_and_then_the_status(
    qtbot: QtBot, installer: GpuInstaller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = STATUS | {"state": "ready"}
    steps = [{"step": "download", "done": done, "total": 100} for done in (0, 50)]
    code = _say(*steps, {"torch": "2.13.0", "devices": []})
    asked = _program(tmp_path, monkeypatch, install=code, status=_say(ready))
    seen: list[tuple[str, int, int]] = []
    installer.changed.connect(lambda: seen.append((installer.step, installer.done, installer.total)))
    installer.install()
    assert installer.is_installing
    qtbot.waitUntil(lambda: installer.status == ready)
    assert ("download", 50, 100) in seen
    assert not installer.is_installing
    assert installer.error == ""
    assert asked.read_text().splitlines() == ["-m app gpu install --json", "-m app gpu status --json"]


def test_a_failure_is_its_last_sentence(
    qtbot: QtBot, installer: GpuInstaller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "echo noise >&2; echo 'moss-voice: The disk of / is full. Free some space.' >&2; exit 1"
    _program(tmp_path, monkeypatch, install=code, status=_say(STATUS))
    installer.install()
    qtbot.waitUntil(lambda: installer.status == STATUS)
    assert installer.error == "The disk of / is full. Free some space."
    _program(tmp_path, monkeypatch, install="true", status=_say(STATUS))
    installer.install()
    assert installer.error == ""
    qtbot.waitUntil(lambda: not installer.is_installing)


def test_one_that_is_cancelled_has_not_failed(
    qtbot: QtBot, installer: GpuInstaller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = {"step": "download", "done": 1, "total": 100}
    _program(tmp_path, monkeypatch, install=f"{_say(line)}\nexec sleep 60", status=_say(STATUS))
    installer.install()
    qtbot.waitUntil(lambda: installer.step == "download")
    installer.cancel_installation()
    qtbot.waitUntil(lambda: installer.status == STATUS)
    assert installer.error == ""


def test_one_that_does_not_end_is_ended(
    qtbot: QtBot, installer: GpuInstaller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.gui.common.child_command.PATIENCE_MS", 50)
    line = {"step": "download", "done": 1, "total": 100}
    stubborn = f"trap '' TERM\n{_say(line)}\nexec sleep 60"  # which inherits that it ignores the signal
    _program(tmp_path, monkeypatch, install=stubborn, status=_say(STATUS))
    installer.install()
    qtbot.waitUntil(lambda: installer.step == "download")
    installer.cancel_installation()
    qtbot.waitUntil(lambda: installer.status == STATUS)


def test_closing_ends_it_at_once(
    qtbot: QtBot, installer: GpuInstaller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _program(tmp_path, monkeypatch, install="exec sleep 60")
    installer.install()
    installer.kill()
    assert not installer.is_installing


def test_one_at_a_time(
    qtbot: QtBot, installer: GpuInstaller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _program(tmp_path, monkeypatch, remove="true", status=_say(STATUS))
    installer.uninstall()
    installer.install()
    installer.query_status()
    qtbot.waitUntil(lambda: installer.status == STATUS)
    assert asked.read_text().splitlines() == ["-m app gpu remove", "-m app gpu status --json"]


def test_a_program_that_cannot_be_started_is_an_error(
    qtbot: QtBot, installer: GpuInstaller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    installer.install()
    qtbot.waitUntil(lambda: installer.error != "")
    assert not installer.is_installing


def test_only_a_packaged_program_for_the_processor_has_one(
    window: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert window.settings.gpu is None
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(metadata, "distributions", lambda name: [SimpleNamespace(version="2.13.0")])
    assert make_installer(window, window.closed) is None
    monkeypatch.setattr(metadata, "distributions", lambda name: [SimpleNamespace(version="2.13.0+cpu")])
    assert make_installer(window, window.closed) is not None
