"""The settings dialog of the window, and downloads that end while it is closed."""

from __future__ import annotations

import dataclasses

import pytest
from PySide6.QtWidgets import QDialog

from app.gui.settings.model_jobs import Job
from app.gui.settings.settings_dialog import SettingsDialog
from app.gui.window.main_window import MainWindow
from app.installed_models import Model, find_models
from app.session.events import DevicesChanged, EngineReady, ErrorRaised
from engine_runtime.errors import Problem
from tests.doubles.scripted_session import ScriptedSession


@pytest.fixture
def released() -> Model:
    return find_models()[-1]


@pytest.mark.slow
def test_what_is_accepted_in_the_dialog_is_applied(
    window: MainWindow, session: ScriptedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.feed(DevicesChanged(("USB",), ("pulse",), "USB", "pulse"), EngineReady("nano", 1.0, 16000, 24000))
    window.bridge.poll()
    answers = [QDialog.DialogCode.Rejected, QDialog.DialogCode.Accepted]
    monkeypatch.setattr(SettingsDialog, "exec", lambda dialog: answers.pop(0))
    edited = dataclasses.replace(window.applied.current, endpointing_ms=900, device="cuda:0")
    monkeypatch.setattr(SettingsDialog, "preferences", lambda dialog: edited)
    window.settings.open_settings()
    assert window.applied.current != edited
    window.settings.open_settings()
    assert window.applied.current == edited


@pytest.mark.slow
@pytest.mark.parametrize("dialog", ["settings", "guide"])
def test_what_changes_while_a_dialog_is_open_stays(
    window: MainWindow, session: ScriptedSession, monkeypatch: pytest.MonkeyPatch, dialog: str
) -> None:
    """The menu of the tray and the keys of other windows work meanwhile."""
    monkeypatch.setattr(window.settings.tools.plans, "look_up", lambda bundle: None)

    def change() -> None:
        window.applied.choose_volume(33)
        window.ways.interruption_chosen.emit("never")

    def run(shown: SettingsDialog) -> QDialog.DialogCode:
        change()
        shown.show_preferences(dataclasses.replace(shown.preferences(), endpointing_ms=900))
        return QDialog.DialogCode.Accepted

    if dialog == "settings":
        monkeypatch.setattr(SettingsDialog, "exec", run)
        window.settings.open_settings()
        assert window.applied.current.endpointing_ms == 900
    else:
        guide = window.settings.open_guide()
        change()
        guide.accept()
    assert (window.applied.current.volume, window.applied.current.interruption) == (33, "never")


@pytest.mark.slow
def test_a_download_that_ends_is_announced(window: MainWindow, released: Model) -> None:
    window.settings.tools.jobs.finished.emit(Job("download", released))
    assert window.notice.text().startswith("moss-speech is downloaded")
    window.settings.tools.jobs.failed.emit(
        Job("download", released), Problem("The disk is full.", "Free some space.")
    )
    assert (window.banner.message, window.banner.advice) == ("The disk is full.", "Free some space.")


@pytest.mark.slow
def test_a_fatal_error_leads_to_the_settings(
    window: MainWindow, session: ScriptedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[SettingsDialog] = []
    monkeypatch.setattr(SettingsDialog, "exec", lambda dialog: opened.append(dialog) or 0)
    session.feed(ErrorRaised(Problem("The bundle is broken.", "Get it again."), is_fatal=True))
    window.bridge.poll()
    assert window.banner.remedy_button.text() == "Open the settings"
    window.banner.remedy_button.click()
    assert len(opened) == 1
