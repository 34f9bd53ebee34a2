"""Notices appear and go by themselves, and none hides another; errors stay until they are over."""

from __future__ import annotations

from pathlib import Path

import pytest
import shiboken6
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from app.gui.common import notices
from app.gui.common.icons import Icons
from app.gui.common.notices import ErrorBanner, NoticeLine
from app.gui.common.themes import Theme
from engine_runtime.errors import Problem


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


@pytest.fixture
def line(qtbot: QtBot) -> NoticeLine:
    line = NoticeLine()
    qtbot.addWidget(line)
    return line


def test_a_notice_waits_until_the_one_before_was_seen(
    qtbot: QtBot, line: NoticeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "SEEN_MS", 40)
    shown: list[str] = []
    line.changed.connect(lambda: shown.append(line.text()) if not line.isHidden() else None)
    for text in ("No captions.", "Silence.", "No captions.", "Silence."):
        line.announce(text)
    assert line.text() == "No captions."
    qtbot.waitUntil(lambda: line.text() == "Silence.")
    assert shown == ["No captions.", "Silence."]


def test_an_answer_is_shown_at_once_and_the_notice_again_after_it(
    qtbot: QtBot, line: NoticeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "SEEN_MS", 40)
    line.announce("Silence.")
    for text in ("Size: 125 %", "Size: 150 %"):
        line.show_notice(text)
        assert line.text() == text
    qtbot.waitUntil(lambda: line.text() == "Silence.")


def test_a_notice_stays_while_no_window_is_in_sight(
    qtbot: QtBot, line: NoticeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "SHOWN_MS", 20)
    monkeypatch.setattr(notices, "SEEN_MS", 20)
    window = QWidget()
    qtbot.addWidget(window)
    line.setParent(window)
    for tell, stays in ((line.announce, True), (line.show_notice, False)):
        tell("Told.")
        qtbot.wait(200)
        assert line.isHidden() is not stays
        window.show()
        qtbot.waitUntil(line.isHidden)
        window.hide()
    line.setParent(None)


def test_the_lines_of_all_windows_show_the_same(qtbot: QtBot, line: NoticeLine) -> None:
    other, gone = NoticeLine(), NoticeLine()
    qtbot.addWidget(other)
    for mirror in (other, gone):
        mirror.mirror(line)
    shiboken6.delete(gone)
    line.announce("Silence.")
    line.show_notice("Copied.")
    assert (other.text(), other.isHidden()) == ("Copied.", False)


@pytest.fixture
def banner(qtbot: QtBot, theme: Theme, icons: Icons) -> ErrorBanner:
    banner = ErrorBanner(theme, icons)
    qtbot.addWidget(banner)
    return banner


def test_an_error_does_not_hide_the_one_before_it_for_good(banner: ErrorBanner) -> None:
    for message in ("The GPU is not used.", "The settings were damaged.", "The GPU is not used."):
        banner.show_error(Problem(message, "Do something."))
    assert (banner.message, banner.more.text()) == ("The GPU is not used.", "1 more")
    banner.close_button.click()
    assert (banner.message, banner.more.isHidden()) == ("The settings were damaged.", True)
    banner.close_button.click()
    assert banner.message == ""
    assert banner.isHidden()


def test_an_error_that_is_over_goes_wherever_it_is(banner: ErrorBanner) -> None:
    lost, full = Problem("The loudspeaker was lost."), Problem("The disk is full.")
    banner.show_error(lost)
    banner.show_error(full)
    banner.end(lambda subject: subject == lost)
    assert (banner.message, banner.more.isHidden()) == ("The disk is full.", True)
    banner.end(lambda subject: subject == full)
    assert banner.isHidden()
