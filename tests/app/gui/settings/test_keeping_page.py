"""The settings about kept conversations: folder, size, deletion."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from app import paths
from app.gui.common.preferences import Preferences
from app.gui.settings import keeping_page
from app.gui.settings.keeping_page import KeepingPage


def test_folder_and_size_are_shown_and_one_button_deletes_all(
    qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "kept"
    monkeypatch.setattr(paths, "conversations_dir", lambda: root)
    page = KeepingPage()
    qtbot.addWidget(page)
    assert page.keep == "nothing"
    assert page.folder.path == ""
    assert page.folder.line.placeholderText() == str(root)
    assert not page.delete_button.isEnabled()
    (root / "a").mkdir(parents=True)
    (root / "a" / "conversation.json").write_text(
        '{"format": 1, "started": "2026-11-20T10:00:00+00:00", "seconds": 1, "turns": 1, "first_words": "",'
        '"is_ended": true}'
    )
    (root / "a" / "conversation.wav").write_bytes(bytes(3_000_000))
    page.show()
    assert page.total.text() == "1 kept, 2.86 MiB"
    answer, asked = False, []
    monkeypatch.setattr(keeping_page, "is_confirmed", lambda _, *words: asked.append(words) or answer)
    page.delete_button.click()
    assert (root / "a").exists()
    assert asked == [("Delete all kept conversations?", "This cannot be undone.", "Delete all")]
    answer = True
    page.delete_button.click()
    assert not (root / "a").exists()
    assert page.total.text().startswith("0 kept")
    assert not page.delete_button.isEnabled()


def test_a_second_window_leaves_the_conversations_alone(qtbot: QtBot) -> None:
    page = KeepingPage()
    qtbot.addWidget(page)
    page.forbid_keeping()
    page.show()
    assert not page.keep_box.isEnabled()
    assert not page.delete_button.isEnabled()
    assert "second window" in page.total.text()


def test_another_folder_is_checked_and_shown(qtbot: QtBot, tmp_path: Path) -> None:
    page = KeepingPage()
    qtbot.addWidget(page)
    (tmp_path / "file").write_text("")
    for folder, is_usable in (
        (str(tmp_path / "not" / "there" / "yet"), True),
        ("~/Talks", True),
        ("Talks", False),
        (str(tmp_path / "file"), False),
        (str(tmp_path / "file" / "below"), False),
        ("", True),
    ):
        with qtbot.waitSignal(page.checked, timeout=0, raising=False):
            page.folder.path = folder
        assert page.is_usable == is_usable
        assert bool(page.folder.note.text()) != is_usable
    page.folder.path = str(tmp_path)
    assert page.edited(Preferences()).conversations_dir() == tmp_path
    assert page.total.text().startswith("0 kept")
    page.show_preferences(Preferences(conversations="~/Talks"))
    assert page.edited(Preferences()).conversations_dir() == Path.home() / "Talks"
    assert Preferences(conversations="Talks").conversations_dir() == paths.conversations_dir()
