"""Preferences in force: sent to the session when they change it, saved, and reported where that fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from app.gui.common.bridge import SessionBridge
from app.gui.common.preferences import Preferences, PreferenceStore
from app.gui.settings.applied_preferences import AppliedPreferences
from app.session.commands import ApplySettings, SetDevices, SetReply
from app.session.session_settings import SessionSettings
from app.settings import StartSettings
from engine_runtime.errors import Problem
from engine_runtime.options import EngineOptions
from engine_runtime.types import Modality
from tests.doubles.scripted_session import ScriptedSession


@pytest.fixture
def applied(host: QWidget, session: ScriptedSession, store: PreferenceStore) -> AppliedPreferences:
    return AppliedPreferences(
        host, SessionBridge(session, host), store, StartSettings(seed=7, given=frozenset({"seed"}))
    )


def test_changed_settings_reach_the_session_once(
    qtbot: QtBot, applied: AppliedPreferences, session: ScriptedSession, store: PreferenceStore
) -> None:
    chosen = dataclasses.replace(applied.current, endpointing_ms=900)
    with qtbot.waitSignal(applied.changed):
        applied.apply(chosen)
    assert session.commands == [ApplySettings(applied.session_settings())]
    assert applied.session_settings().turn_taking.end_ms == 900
    assert store.load() == dataclasses.replace(chosen, seed=None), "that of the command line is not saved"
    applied.apply(chosen)
    applied.apply(dataclasses.replace(chosen, language="zh_CN"))
    assert len(session.commands) == 1


def test_a_seed_of_the_settings_replaces_that_of_the_command_line(applied: AppliedPreferences) -> None:
    assert applied.session_settings().seed == 7
    applied.apply(dataclasses.replace(applied.current, seed=4))
    assert applied.session_settings().seed == 4
    applied.apply(dataclasses.replace(applied.current, seed=None))
    assert applied.session_settings().seed is None


SESSION_OPTIONS: dict[str, tuple[Any, Any, Callable[[SessionSettings], object]]] = {
    "eagerness": ("patient", "eager", lambda settings: settings.turn_taking.eagerness),
    "input_mode": ("push", "both", lambda settings: settings.turn_taking.input_mode),
    "overlap": ("duck", "off", lambda settings: settings.overlap),
    "speculate": ("off", "on", lambda settings: settings.speculate),
    "echo_library": ("livekit", "pywebrtc", lambda settings: settings.audio_processing.library),
    "seed": (7, 4, lambda settings: settings.seed),
}


@pytest.mark.parametrize("option", SESSION_OPTIONS)
def test_what_the_user_changes_takes_effect_over_the_command_line(
    host: QWidget, session: ScriptedSession, store: PreferenceStore, option: str
) -> None:
    values: dict[str, Any] = {name: given for name, (given, _, _) in SESSION_OPTIONS.items()}
    given = StartSettings(**values, given=frozenset(values))
    applied = AppliedPreferences(host, SessionBridge(session, host), store, given)
    assert {name: getattr(applied.current, name) for name in values} == values
    _, chosen, of = SESSION_OPTIONS[option]
    applied.apply(dataclasses.replace(applied.current, **{option: chosen}))
    (command,) = session.commands
    assert isinstance(command, ApplySettings)
    assert of(command.settings) == chosen
    for name in values.keys() - {option}:
        assert SESSION_OPTIONS[name][2](command.settings) == values[name], "was not changed"
        assert getattr(store.load(), name) == getattr(Preferences(), name), "was not chosen"
    assert getattr(store.load(), option) == chosen


def test_every_option_that_a_preference_has_can_be_given_and_changed() -> None:
    """No list of fields: an option of the command line that has a preference of its name follows the rule."""
    names = {known.name for kind in (StartSettings, EngineOptions) for known in dataclasses.fields(kind)}
    shared = sorted(names & {known.name for known in dataclasses.fields(Preferences)} - {"engine"})
    assert {"seed", "eagerness", "trt_codec", "engine_python", "voice", "server"} <= set(shared)
    for name in shared:
        value: Any = f"of the command line: {name}"
        start = StartSettings(given=frozenset({name}))
        object.__setattr__(start.engine if hasattr(start.engine, name) else start, name, value)
        in_force = Preferences().with_given(start)
        assert getattr(in_force, name) == value
        of_the_window: dict[str, Any] = {name: "of the window"}
        edited = dataclasses.replace(in_force, **of_the_window)
        assert name not in start.released(edited.releases(in_force)).given


def test_devices_are_sent_without_the_other_settings(
    applied: AppliedPreferences, session: ScriptedSession, store: PreferenceStore
) -> None:
    applied.choose_devices("USB headset", "")
    assert session.commands == [SetDevices("USB headset", None)]
    assert store.load().input_device == "USB headset"


def test_preferences_that_cannot_be_saved_still_apply_and_are_saved_later(
    host: QWidget, session: ScriptedSession, tmp_path: Path
) -> None:
    (tmp_path / "folder").write_text("a file where the folder would be")
    store = PreferenceStore(tmp_path / "folder" / "window.ini")
    applied = AppliedPreferences(host, SessionBridge(session, host), store, StartSettings())
    failed: list[Problem] = []
    recovered: list[Problem] = []
    applied.failed.connect(failed.append)
    applied.recovered.connect(recovered.append)
    applied.choose_reply(Modality.TEXT)
    applied.apply(Preferences(endpointing_ms=900))
    assert session.commands == [SetReply(Modality.TEXT), ApplySettings(applied.session_settings())]
    (problem,) = failed  # at each change it would only be in the way
    assert str(store.file) in problem.what_to_do
    (tmp_path / "folder").unlink()
    applied.choose_devices("USB headset", "")
    assert recovered == [problem]
    assert store.load().input_device == "USB headset"
    assert store.load().endpointing_ms == 900
