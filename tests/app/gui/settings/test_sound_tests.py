"""The tests of microphone and loudspeaker: a closed microphone is open during its test only."""

from __future__ import annotations

from typing import Literal

import pytest
from PySide6.QtCore import QCoreApplication, QEvent
from pytestqt.qtbot import QtBot
from shiboken6 import isValid

from app.gui.common.preferences import Preferences
from app.gui.settings.settings_dialog import SettingsDialog
from app.gui.settings.sound_tests import SoundNotices, SoundTests
from app.gui.window.main_window import MainWindow
from app.session.commands import CheckLoudspeaker, CheckMicrophone, Start, Stop
from app.session.events import (
    DeviceNoticed,
    DevicesChanged,
    ErrorRaised,
    Event,
    Levels,
    MicrophoneVerdict,
    SessionState,
    SoundChecked,
    StateChanged,
)
from engine_runtime.errors import Problem
from tests.doubles.scripted_session import ScriptedSession
from tests.tools.widgets import pages_of


@pytest.fixture
def tests(qtbot: QtBot, window: MainWindow, session: ScriptedSession) -> SoundTests:
    tests = SoundTests(window.bridge)
    qtbot.addWidget(tests)
    session.commands.clear()
    return tests


def report(window: MainWindow, *events: Event) -> None:
    session = window.bridge.session
    assert isinstance(session, ScriptedSession)
    session.feed(*events)
    window.bridge.poll()


def test_the_buttons_ask_the_session(tests: SoundTests, window: MainWindow, session: ScriptedSession) -> None:
    report(window, StateChanged(SessionState.LISTENING))
    tests.microphone_button.click()
    tests.loudspeaker_button.click()
    assert session.commands == [CheckMicrophone(), CheckLoudspeaker()]
    said = []
    for event in (
        SoundChecked("recording"),
        SoundChecked("done"),
        ErrorRaised(Problem("No microphone is open.", "Connect one.")),
    ):
        report(window, event)
        said.append(tests.status.text())
    assert said == ["Recording: say something …", "", "No microphone is open. Connect one."]
    assert session.commands == [CheckMicrophone(), CheckLoudspeaker()]
    report(window, Levels(-20.0, -120.0, 0.42))
    assert tests.bar.probability == 0.42


@pytest.mark.parametrize(
    "end", [SoundChecked("done"), ErrorRaised(Problem("No microphone was found.", "Connect one."))]
)
def test_a_closed_microphone_is_open_during_its_test_only(
    tests: SoundTests, window: MainWindow, session: ScriptedSession, end: Event
) -> None:
    report(window, StateChanged(SessionState.STOPPED))
    tests.microphone_button.click()
    assert session.commands == [Start(), CheckMicrophone()]
    report(window, SoundChecked("recording"), StateChanged(SessionState.LISTENING), SoundChecked("playing"))
    assert session.commands[2:] == []
    report(window, end, end)
    assert session.commands[2:] == [Stop()]


def test_a_microphone_is_closed_with_the_page_that_opened_it(
    tests: SoundTests, window: MainWindow, session: ScriptedSession
) -> None:
    report(window, StateChanged(SessionState.STOPPED))
    tests.show()
    tests.microphone_button.click()
    report(window, SoundChecked("recording"), StateChanged(SessionState.LISTENING))
    tests.hide()
    assert session.commands == [Start(), CheckMicrophone(), Stop()]


def test_a_closed_dialog_hears_no_more(qtbot: QtBot, window: MainWindow) -> None:
    tests = SoundTests(window.bridge)
    tests.deleteLater()
    QCoreApplication.sendPostedEvents(tests, QEvent.Type.DeferredDelete)
    notices = SoundNotices(window.bridge, tests)
    notices.deleteLater()
    QCoreApplication.sendPostedEvents(notices, QEvent.Type.DeferredDelete)
    report(window, Levels(-20.0, -120.0, 0.4), SoundChecked("done"), ErrorRaised(Problem("Something.", "")))
    report(window, DeviceNoticed(Problem("The microphone is back.")))
    assert not isValid(tests)


def test_without_a_session_nothing_is_tested(qtbot: QtBot) -> None:
    tests = SoundTests(None)
    qtbot.addWidget(tests)
    assert not tests.microphone_button.isEnabled()
    assert not tests.loudspeaker_button.isEnabled()


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("silent", ("Desk mic delivers silence", "muted")),
        ("quiet", ("Desk mic is too quiet (-52 dBFS)", "gain control")),
        ("no_speech", ("Desk mic delivers sound (-52 dBFS)", "no speech")),
        ("clipping", ("Desk mic is too loud", "Lower its level")),
        ("good", ("Desk mic is good (-52 dBFS)",)),
    ],
)
def test_the_verdict_names_the_device_and_stays(
    tests: SoundTests, window: MainWindow, verdict: MicrophoneVerdict, words: tuple[str, ...]
) -> None:
    report(window, DevicesChanged(("mic",), ("out",), "mic", "out", {"mic": "Desk mic"}))
    phase: Literal["done", "playing"] = "done" if verdict == "silent" else "playing"
    report(window, SoundChecked("recording"), SoundChecked(phase, verdict, -52.3))
    assert all(part in tests.status.text() for part in words)
    assert tests.status.text().endswith("Playing …") is (phase == "playing")
    report(window, SoundChecked("done"))
    said = tests.status.text()
    assert all(part in said for part in words)
    assert "Playing" not in said
    report(window, SoundChecked("recording"))
    assert tests.status.text() == "Recording: say something …"


@pytest.mark.slow
def test_what_happens_to_the_microphone_is_said_in_the_dialog(qtbot: QtBot, window: MainWindow) -> None:
    dialog = SettingsDialog(Preferences(), None, window, window.bridge)
    qtbot.addWidget(dialog)
    dialog.show()
    report(window, DeviceNoticed(Problem("The microphone Desk delivers silence.")))
    assert dialog.notices.isVisible()
    assert dialog.notices.text() == "The microphone Desk delivers silence."
    pages = pages_of(dialog.tabs)
    dialog.tabs.setCurrentWidget(next(page for page in pages if page.isAncestorOf(dialog.sound_check)))
    report(window, ErrorRaised(Problem("The sound device Desk was lost.", "Check its cable.")))
    assert dialog.sound_check.tests.status.text() == "The sound device Desk was lost. Check its cable."
    assert dialog.notices.text() == "The microphone Desk delivers silence."
    status = dialog.sound_check.tests.status
    report(window, SoundChecked("playing", "quiet", -52.0))
    dialog.resize(dialog.minimumSizeHint())
    qtbot.wait(1)
    assert status.height() >= status.heightForWidth(status.width())
