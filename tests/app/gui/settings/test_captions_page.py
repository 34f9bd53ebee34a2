"""The page about captions: what is shown is returned, and what is missing is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from app.gui.common.preferences import Preferences
from app.gui.settings.captions_page import CaptionsPage
from engine_runtime import whisper


@pytest.fixture
def page(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> CaptionsPage:
    monkeypatch.setattr(whisper, "find_spec", lambda name: name)
    page = CaptionsPage()
    qtbot.addWidget(page)
    return page


def test_what_is_shown_is_returned_and_becomes_a_setting(page: CaptionsPage) -> None:
    assert page.edited(Preferences()) == Preferences()
    chosen = Preferences(captions=True, whisper="/models/whisper-base")
    page.show_preferences(chosen)
    assert page.edited(Preferences()) == chosen
    assert chosen.session_settings().captions == Path("/models/whisper-base")
    assert Preferences(whisper="/models/whisper-base").session_settings().captions is None
    assert Preferences(captions=True).session_settings().captions is None


def test_what_the_folder_lacks_is_said(page: CaptionsPage, tmp_path: Path) -> None:
    note = page.model.note
    assert not note.text()
    page.captions.setChecked(True)
    page.model.path = str(tmp_path)
    assert "has no model.bin" in note.text()
    for name in ("model.bin", "config.json", "tokenizer.json"):
        (tmp_path / name).touch()
    page.model.path = f"{tmp_path}/"
    assert not note.text()


def test_without_the_package_the_page_says_how_to_get_it(
    page: CaptionsPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whisper, "find_spec", lambda name: None)
    page.captions.setChecked(True)
    assert "faster-whisper" in page.model.note.text()
    assert "[transcribe]" in page.model.note.text()
    page.captions.setChecked(False)
    assert not page.model.note.text()
