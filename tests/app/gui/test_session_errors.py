"""Errors of the session in the banner."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from app.gpu_runtime.lock import GpuRuntimeError
from app.gui import session_errors
from app.gui.bridge import SessionBridge
from app.gui.error_banner import ErrorBanner
from app.gui.icons import Icons
from app.gui.session_errors import SessionErrors
from app.gui.themes import Theme
from app.session.commands import RescanDevices
from app.session.events import DevicesChanged, ErrorRaised, RecordingStopped
from tests.doubles.scripted_session import ScriptedSession

LOST = ErrorRaised("The sound device pulse was lost.", "Check its cable.", is_about_sound=True)
BACK = DevicesChanged(("pulse",), ("pulse",), "pulse", "pulse")


@pytest.fixture
def banner(qtbot: QtBot, theme: Theme, icons: Icons) -> ErrorBanner:
    banner = ErrorBanner(theme, icons)
    qtbot.addWidget(banner)
    return banner


@pytest.fixture
def bridge(qtbot: QtBot, banner: ErrorBanner, session: ScriptedSession) -> Iterator[SessionBridge]:
    window = QWidget()
    qtbot.addWidget(window)
    bridge = SessionBridge(session, window)
    errors = SessionErrors(window, bridge, banner)
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
    bridge.recording_stopped.emit(RecordingStopped("", "The disk is full.", "Free some space."))
    bridge.devices_changed.emit(BACK)
    assert (banner.message, banner.advice) == ("The disk is full.", "Free some space.")
    assert banner.remedy_button.isHidden()


def test_a_gpu_runtime_that_is_not_used_is_shown(
    qtbot: QtBot, bridge: SessionBridge, banner: ErrorBanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices = [GpuRuntimeError("The GPU runtime is not used: it is broken. Repair it."), None]
    monkeypatch.setattr(session_errors, "take_notice", lambda: notices.pop(0))
    window = QWidget()
    qtbot.addWidget(window)
    errors = SessionErrors(window, bridge, banner)
    errors.show_gpu_runtime()
    assert banner.message == "The GPU runtime is not used: it is broken."
    assert banner.advice == "Repair it."
    banner.dismiss()
    errors.show_gpu_runtime()
    assert not banner.isVisible()
