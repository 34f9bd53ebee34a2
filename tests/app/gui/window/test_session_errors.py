"""Errors of the session in the banner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from app import paths
from app.audio.devices import KINDS
from app.gpu_runtime.lock import GpuRuntimeError
from app.gui.common.bridge import SessionBridge
from app.gui.common.icons import Icons
from app.gui.common.notices import ErrorBanner
from app.gui.common.preferences import Preferences, PreferenceStore
from app.gui.common.themes import Theme
from app.gui.common.translation import Translation
from app.gui.settings.applied_preferences import AppliedPreferences
from app.gui.settings.engine_switch import EngineSwitch
from app.gui.window import session_errors
from app.gui.window.session_errors import SessionErrors
from app.session.commands import RescanDevices
from app.session.engine_slot import EngineFactory
from app.session.events import (
    DevicesChanged,
    EngineReady,
    ErrorRaised,
    RecordingStopped,
    TurnOpened,
)
from app.settings import StartSettings
from engine_runtime.errors import Problem
from engine_runtime.options import EngineOptions
from tests.doubles.scripted_session import ScriptedSession

LOST = ErrorRaised(Problem("The sound device pulse was lost.", "Check its cable."), is_about_sound=True)
BACK = DevicesChanged(("pulse",), ("pulse",), "pulse", "pulse")


def switch_of(window: QWidget, bridge: SessionBridge, store: PreferenceStore) -> EngineSwitch:
    """The engine of a command line without options."""
    return EngineSwitch(window, bridge, AppliedPreferences(window, bridge, store, StartSettings()), None)


@pytest.fixture
def banner(qtbot: QtBot, theme: Theme, icons: Icons) -> ErrorBanner:
    banner = ErrorBanner(theme, icons)
    qtbot.addWidget(banner)
    return banner


@pytest.fixture
def bridge(
    qtbot: QtBot, banner: ErrorBanner, session: ScriptedSession, store: PreferenceStore
) -> Iterator[SessionBridge]:
    window = QWidget()
    qtbot.addWidget(window)
    bridge = SessionBridge(session, window)
    errors = SessionErrors(window, bridge, banner, switch_of(window, bridge, store))
    yield bridge
    errors.deleteLater()


def test_an_error_of_a_device_ends_when_the_device_is_back(
    bridge: SessionBridge, banner: ErrorBanner, session: ScriptedSession
) -> None:
    bridge.error_raised.emit(LOST)
    bridge.devices_changed.emit(DevicesChanged((), (), "", ""))
    assert banner.message == "The sound device pulse was lost."
    banner.remedy_button.click()
    assert session.commands == [RescanDevices()]
    bridge.devices_changed.emit(BACK)
    assert banner.message == ""


def test_another_error_stays_when_the_device_is_back(bridge: SessionBridge, banner: ErrorBanner) -> None:
    bridge.error_raised.emit(LOST)
    bridge.recording_stopped.emit(RecordingStopped("", Problem("The disk is full.", "Free some space.")))
    bridge.devices_changed.emit(BACK)
    assert banner.message == "The disk is full."
    assert banner.remedy_button.isHidden()


def test_a_device_that_is_back_is_no_error_behind_another_one(
    bridge: SessionBridge, banner: ErrorBanner
) -> None:
    bridge.error_raised.emit(LOST)
    bridge.error_raised.emit(ErrorRaised(Problem("The model failed.", "Ask again."), turn_id=3))
    bridge.devices_changed.emit(BACK)
    assert (banner.message, banner.more.isHidden()) == ("The model failed.", True)


ENGINE = ErrorRaised(
    Problem(
        "/e holds no engine: rank0.engine is missing.",
        "Add --device cuda, or leave out --backend trtllm.",
    ),
    is_fatal=True,
)
READY = EngineReady("nano", 1.0, 16_000, 24_000)


def errors_of(
    window: QWidget,
    session: ScriptedSession,
    banner: ErrorBanner,
    store: PreferenceStore,
    given: StartSettings,
) -> tuple[SessionBridge, EngineSwitch, SessionErrors]:
    """Errors of a window that can load engines."""

    def never_run(start: StartSettings) -> EngineFactory:
        def load() -> NoReturn:
            raise AssertionError(f"a scripted session loads nothing: {start}")

        return load

    bridge = SessionBridge(session, window)
    applied = AppliedPreferences(window, bridge, store, given)
    switch = EngineSwitch(window, bridge, applied, never_run)
    return bridge, switch, SessionErrors(window, bridge, banner, switch)


def test_an_engine_of_the_settings_is_named_as_such(
    qtbot: QtBot, host: QWidget, session: ScriptedSession, banner: ErrorBanner, store: PreferenceStore
) -> None:
    store.save(Preferences(backend="trtllm", engine="/e"))
    bridge, switch, errors = errors_of(host, session, banner, store, StartSettings())
    bridge.error_raised.emit(ENGINE)
    assert "settings" in banner.message
    assert ENGINE.problem.what_is_wrong in banner.message
    assert banner.advice.startswith("nano ")
    assert ENGINE.problem.what_to_do not in banner.advice, "the options of the command line are no remedy"
    with qtbot.waitSignal(errors.settings_wanted):
        banner.remedy_button.click()
    bridge.engine_ready.emit(READY)
    assert banner.message, "nano does not make it untrue"
    switch.apply_edited(Preferences())  # what runs is now what was chosen
    assert banner.message == ""


def test_an_engine_of_the_command_line_gets_the_remedy_of_the_command_line(
    host: QWidget, session: ScriptedSession, banner: ErrorBanner, store: PreferenceStore
) -> None:
    options = EngineOptions(backend="trtllm", engine=Path("/e"))
    given = StartSettings(engine=options, given=frozenset({"backend", "engine"}))
    bridge, _, _ = errors_of(host, session, banner, store, given)
    bridge.error_raised.emit(ENGINE)
    assert (banner.message, banner.advice) == (ENGINE.problem.what_is_wrong, ENGINE.problem.what_to_do)


def test_a_refused_server_is_forgotten_when_another_engine_was_chosen_and_is_ready(
    host: QWidget, session: ScriptedSession, banner: ErrorBanner, store: PreferenceStore
) -> None:
    store.save(Preferences(server="wss://a.example.org"))
    bridge, switch, _ = errors_of(host, session, banner, store, StartSettings())
    bridge.error_raised.emit(ErrorRaised(Problem("a.example.org refused the connection.", ""), is_fatal=True))
    assert "settings" in banner.advice
    switch.apply_edited(Preferences())
    bridge.engine_ready.emit(READY)
    assert banner.message == ""


def test_what_is_past_ends_with_the_next_turn(bridge: SessionBridge, banner: ErrorBanner) -> None:
    for error, stays in (
        (ErrorRaised(Problem("The program stood still for 9 s.", ""), is_past=True), False),
        (ErrorRaised(Problem("The model failed.", "Ask again."), turn_id=3), False),
        (ErrorRaised(Problem("Its echo cannot be cancelled.", "Use headphones.")), True),
        (RecordingStopped("", Problem("The disk is full.", "Free some space.")), True),
    ):
        signal = bridge.error_raised if isinstance(error, ErrorRaised) else bridge.recording_stopped
        signal.emit(error)
        bridge.turn_opened.emit(TurnOpened(4, "text"))
        assert bool(banner.message) == stays


def test_an_error_is_shown_in_the_language_of_the_window(
    qapp: QApplication, bridge: SessionBridge, banner: ErrorBanner
) -> None:
    bridge.error_raised.emit(
        ErrorRaised(Problem("No {kind} was found.", kind=KINDS["microphone"]), is_about_sound=True)
    )
    translator = Translation(qapp, paths.assets_dir() / "translations")
    translator.switch_to("zh_CN")
    try:
        qapp.processEvents()
        assert banner.message == "没有找到麦克风。"
        assert banner.remedy_button.text() != "Look for devices again"
        bridge.devices_changed.emit(BACK)
        assert banner.message == ""
    finally:
        translator.remove_translators()


def test_a_gpu_runtime_that_is_not_used_is_shown(
    qtbot: QtBot,
    bridge: SessionBridge,
    banner: ErrorBanner,
    store: PreferenceStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notices = [GpuRuntimeError("The GPU runtime is not used: it is broken.", "Repair it."), None]
    monkeypatch.setattr(session_errors, "take_notice", lambda: notices.pop(0))
    window = QWidget()
    qtbot.addWidget(window)
    errors = SessionErrors(window, bridge, banner, switch_of(window, bridge, store))
    errors.show_gpu_runtime()
    assert banner.message == "The GPU runtime is not used: it is broken."
    assert banner.advice == "Repair it."
    banner.dismiss()
    errors.show_gpu_runtime()
    assert not banner.isVisible()


def test_a_recording_that_stops_says_what_becomes_of_the_conversation(
    bridge: SessionBridge, banner: ErrorBanner
) -> None:
    problem = Problem("/a/b was not written: the disk is full.", "Free some space or choose another folder.")
    bridge.recording_stopped.emit(RecordingStopped("/a/b", problem))
    assert banner.message == "/a/b was not written: the disk is full."
    assert banner.advice.startswith("Free some space or choose another folder. ")
    assert "no longer kept" in banner.advice


def test_a_damaged_settings_file_is_reported(
    host: QWidget, session: ScriptedSession, banner: ErrorBanner, store: PreferenceStore, tmp_path: Path
) -> None:
    _, _, errors = errors_of(host, session, banner, store, StartSettings())
    errors.show_damaged_settings(tmp_path / "window.ini.damaged")
    assert "damaged" in banner.message
    assert str(tmp_path / "window.ini.damaged") in banner.advice
