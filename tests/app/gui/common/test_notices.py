"""Notices appear and go by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtGui import QDesktopServices
from pytestqt.qtbot import QtBot

from app.gui.common import notices
from app.gui.common.notices import NoticeLine


def test_a_notice_goes_by_itself(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "SHOWN_MS", 20)
    line = NoticeLine()
    qtbot.addWidget(line)
    assert line.isHidden()
    line.show_notice("The microphone is back.")
    assert (line.text(), line.isHidden()) == ("The microphone is back.", False)
    qtbot.waitUntil(line.isHidden)


def test_a_saved_file_is_named_with_a_button_for_its_folder(
    qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: opened.append(url.toLocalFile()) or True)
    line = NoticeLine()
    qtbot.addWidget(line)
    line.show_saved(tmp_path / "c.md")
    assert line.text() == f"Saved as {tmp_path / 'c.md'}."
    line.folder_button.click()
    assert opened == [str(tmp_path)]
    line.show_notice("The microphone is back.")
    assert line.folder_button.isHidden()
