"""The help menu."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QFileDialog
from pytestqt.qtbot import QtBot

from app import paths
from app.gui.window.main_window import MainWindow
from app.version import VERSION


@pytest.mark.slow
def test_the_log_folder_is_opened(window: MainWindow, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[QUrl] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: opened.append(url) or True)
    window.help.log_action.trigger()
    assert [Path(url.toLocalFile()) for url in opened] == [paths.log_file().parent]
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: False)
    window.help.log_action.trigger()
    assert str(paths.log_file().parent) in window.notice.text()


@pytest.mark.slow
def test_the_shortcuts_and_the_guide_are_asked_for(qtbot: QtBot, window: MainWindow) -> None:
    window.help.shortcuts_wanted.disconnect()
    window.help.guide_wanted.disconnect()
    for action, signal in (
        (window.help.shortcuts_action, window.help.shortcuts_wanted),
        (window.help.guide_action, window.help.guide_wanted),
    ):
        with qtbot.waitSignal(signal):
            action.trigger()


def test_about_names_version_and_licences(window: MainWindow, monkeypatch: pytest.MonkeyPatch) -> None:
    text = window.help.about_text()
    assert f"MOSS Voice {VERSION}" in text
    assert "Apache 2.0" in text
    assert "Qt under the GNU Lesser General Public License, version 3" in text
    assert "listed in NOTICE" in text
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert f"{Path(sys.executable).parent}/THIRD-PARTY-LICENSES.txt" in window.help.about_text()


@pytest.mark.slow
def test_the_doctor_writes_its_report(
    qtbot: QtBot, window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "report.txt"
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (str(file), ""))
    window.help.report_action.trigger()
    assert not window.help.report_action.isEnabled()
    qtbot.waitUntil(window.help.report_action.isEnabled)
    assert file.read_text(encoding="utf-8").startswith("Report of moss-voice doctor")
    assert str(file) in window.notice.text()


@pytest.mark.slow
def test_a_report_that_cannot_be_written_is_explained(
    qtbot: QtBot, window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gone" / "report.txt"
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (str(file), ""))
    window.help.report_action.trigger()
    qtbot.waitUntil(window.help.report_action.isEnabled)
    assert "report" in window.banner.message
    assert str(file.parent) in window.banner.advice


@pytest.mark.slow
def test_no_program_of_the_current_folder_is_run(
    qtbot: QtBot, window: MainWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / "app" / "__main__.py"
    planted.parent.mkdir()
    (planted.parent / "__init__.py").touch()
    planted.write_text("import pathlib; pathlib.Path(__file__).with_name('was_run').touch()")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "report.txt"
    file.write_text("an earlier one")
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_: (str(file), ""))
    window.help.report_action.trigger()
    qtbot.waitUntil(window.help.report_action.isEnabled)
    assert not (planted.parent / "was_run").exists()
    assert file.read_text(encoding="utf-8").startswith("Report of moss-voice doctor")
