"""The tests of microphone and loudspeaker: a closed microphone is open during its test only."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QCoreApplication, QEvent
from pytestqt.qtbot import QtBot
from shiboken6 import isValid

from app.gui.main_window import MainWindow
from app.gui.sound_tests import SoundTests
from app.session.commands import CheckLoudspeaker, CheckMicrophone, Start, Stop
from app.session.events import ErrorRaised, Levels, SessionState, SoundChecked, StateChanged
from tests.doubles.scripted_session import ScriptedSession


@pytest.fixture
def tests(qtbot: QtBot, window: MainWindow, session: ScriptedSession) -> SoundTests:
    tests = SoundTests(window.bridge)
    qtbot.addWidget(tests)
    session.commands.clear()
    return tests


def report(window: MainWindow, *events: object) -> None:
    window.bridge.session.feed(*events)  # type: ignore[attr-defined]
    window.bridge.poll()


def test_the_buttons_ask_the_session(tests: SoundTests, window: MainWindow, session: ScriptedSession) -> None:
    report(window, StateChanged(SessionState.LISTENING))
    tests.microphone_button.click()
    tests.loudspeaker_button.click()
    assert session.commands == [CheckMicrophone(), CheckLoudspeaker()]
    said = []
    for event in (SoundChecked("recording"), SoundChecked("done"), ErrorRaised("No microphone is open.", "")):
        report(window, event)
        said.append(tests.status.text())
    assert said == ["Recording: say something …", "", "No microphone is open."]
    assert session.commands == [CheckMicrophone(), CheckLoudspeaker()]
    report(window, Levels(-20.0, -120.0, 0.42))
    assert tests.bar.probability == 0.42


@pytest.mark.parametrize(
    "end", [SoundChecked("done"), ErrorRaised("No microphone was found.", "Connect one.")]
)
def test_a_closed_microphone_is_open_during_its_test_only(
    tests: SoundTests, window: MainWindow, session: ScriptedSession, end: object
) -> None:
    report(window, StateChanged(SessionState.STOPPED))
    tests.microphone_button.click()
    assert session.commands == [Start(), CheckMicrophone()]
    report(window, SoundChecked("recording"), StateChanged(SessionState.LISTENING), SoundChecked("playing"))
    assert session.commands[2:] == []
    report(window, end, end)
    assert session.commands[2:] == [Stop()]


def test_a_closed_dialog_hears_no_more(qtbot: QtBot, window: MainWindow) -> None:
    tests = SoundTests(window.bridge)
    tests.deleteLater()
    QCoreApplication.sendPostedEvents(tests, QEvent.Type.DeferredDelete)
    report(window, Levels(-20.0, -120.0, 0.4), SoundChecked("done"), ErrorRaised("Something.", ""))
    assert not isValid(tests)


def test_without_a_session_nothing_is_tested(qtbot: QtBot) -> None:
    tests = SoundTests(None)
    qtbot.addWidget(tests)
    assert not tests.microphone_button.isEnabled()
    assert not tests.loudspeaker_button.isEnabled()
