"""Notices appear and go by themselves."""

from __future__ import annotations

import pytest
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
