"""Preferences in force: sent to the session when they change it, saved, and reported where that fails."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from app.gui.applied_preferences import AppliedPreferences
from app.gui.bridge import SessionBridge
from app.gui.preferences import Preferences, PreferenceStore
from app.session.commands import ApplySettings, SetDevices
from app.session.session_settings import SessionSettings
from tests.doubles.scripted_session import ScriptedSession


@pytest.fixture
def host(qtbot: QtBot) -> QWidget:
    host = QWidget()
    qtbot.addWidget(host)
    return host


@pytest.fixture
def applied(host: QWidget, session: ScriptedSession, store: PreferenceStore) -> AppliedPreferences:
    return AppliedPreferences(host, SessionBridge(session, host), store, SessionSettings(seed=7))


def test_changed_settings_reach_the_session_once(
    qtbot: QtBot, applied: AppliedPreferences, session: ScriptedSession, store: PreferenceStore
) -> None:
    chosen = dataclasses.replace(applied.current, endpointing_ms=900)
    with qtbot.waitSignal(applied.changed):
        applied.apply(chosen)
    assert session.commands == [ApplySettings(applied.session_settings())]
    assert applied.session_settings().turn_taking.end_ms == 900
    assert store.load() == chosen
    applied.apply(chosen)
    applied.apply(dataclasses.replace(chosen, language="zh_CN"))
    assert len(session.commands) == 1


def test_a_seed_of_the_settings_replaces_that_of_the_command_line(applied: AppliedPreferences) -> None:
    assert applied.session_settings().seed == 7
    applied.apply(dataclasses.replace(applied.current, seed=4))
    assert applied.session_settings().seed == 4
    applied.apply(dataclasses.replace(applied.current, seed=None))
    assert applied.session_settings().seed is None


def test_devices_are_sent_without_the_other_settings(
    applied: AppliedPreferences, session: ScriptedSession, store: PreferenceStore
) -> None:
    applied.choose_devices("USB headset", "")
    assert session.commands == [SetDevices("USB headset", None)]
    assert store.load().input_device == "USB headset"


def test_preferences_that_cannot_be_saved_still_apply(
    qtbot: QtBot, host: QWidget, session: ScriptedSession, tmp_path: Path
) -> None:
    (tmp_path / "folder").write_text("a file where the folder would be")
    store = PreferenceStore(tmp_path / "folder" / "window.ini")
    applied = AppliedPreferences(host, SessionBridge(session, host), store, SessionSettings())
    with qtbot.waitSignal(applied.failed) as failed:
        applied.apply(Preferences(endpointing_ms=900))
    assert str(store.file) in failed.args[1]
    assert session.commands == [ApplySettings(applied.session_settings())]
