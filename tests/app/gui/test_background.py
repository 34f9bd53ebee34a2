"""The window with a tray: what the icon shows, what its menu does, and when the window is gone for good."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtWidgets import QSystemTrayIcon
from pytestqt.qtbot import QtBot

from app.gui.main_window import MainWindow
from app.gui.preferences import Preferences, PreferenceStore
from app.gui.tray import Tray
from app.session.commands import Mute, Stop
from app.session.events import DevicesChanged, SessionState, StateChanged
from tests.doubles.scripted_session import ScriptedSession, opening


@pytest.fixture
def shown(
    qtbot: QtBot, session: ScriptedSession, store: PreferenceStore, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MainWindow]:
    """A window on a desktop with a tray."""
    monkeypatch.setattr(QSystemTrayIcon, "isSystemTrayAvailable", lambda: True)
    window = MainWindow(session, store=store)
    window.show()
    window.begin()
    session.feed(*opening())
    window.bridge.poll()
    session.commands.clear()
    yield window
    window.background.quit()
    window.deleteLater()


def tray_of(window: MainWindow) -> Tray:
    tray = window.background.tray
    assert tray is not None
    return tray


def test_without_a_tray_there_is_no_icon(window: MainWindow) -> None:
    assert window.background.tray is None


@pytest.mark.slow
def test_the_icon_says_what_the_badge_says(shown: MainWindow) -> None:
    tray = tray_of(shown)
    pictures = set()
    for state, words in (
        (SessionState.LISTENING, "Listening"),
        (SessionState.HEARING, "Hearing you"),
        (SessionState.SPEAKING, "Speaking"),
        (SessionState.STOPPED, "Ready"),
    ):
        shown.bridge.state_changed.emit(StateChanged(state))
        assert tray.icon.toolTip() == f"MOSS Voice: {words}"
        pictures.add(tray.icon.icon().cacheKey())
        is_running = state is not SessionState.STOPPED
        assert tray.run_action.text() == ("Stop listening" if is_running else "Start listening")
    assert len(pictures) == 4
    shown.bridge.state_changed.emit(StateChanged(SessionState.LISTENING))
    shown.controls.mute_button.click()
    assert tray.icon.toolTip() == "MOSS Voice: Muted"
    shown.bridge.devices_changed.emit(DevicesChanged((), (), "", ""))
    assert tray.icon.toolTip() == "MOSS Voice: No microphone"


@pytest.mark.slow
def test_the_menu_does_what_the_window_does(shown: MainWindow, session: ScriptedSession) -> None:
    tray = tray_of(shown)
    tray.run_action.trigger()
    tray.mute_action.trigger()
    assert session.commands == [Stop(), Mute(True)]
    assert shown.controls.mute_button.isChecked()
    shown.controls.mute_button.click()
    assert not tray.mute_action.isChecked()
    tray.interruption_action.trigger()
    assert shown.applied.current.interruption == "never"
    shown.controls.interruption_button.click()
    assert shown.applied.current.interruption == "at_once"
    assert not tray.interruption_action.isChecked()


def test_a_click_hides_and_shows_the_window(shown: MainWindow) -> None:
    tray = tray_of(shown)
    tray.icon.activated.emit(QSystemTrayIcon.ActivationReason.Trigger)
    assert not shown.isVisible()
    tray.menu.aboutToShow.emit()
    assert tray.window_action.text() == "Show the window"
    tray.window_action.trigger()
    assert shown.isVisible()


def test_a_closed_window_is_gone_for_good(shown: MainWindow, session: ScriptedSession) -> None:
    shown.close()
    assert session.is_stopped
    assert not tray_of(shown).icon.isVisible()


def test_a_closed_window_stays_in_the_tray_if_wanted(shown: MainWindow, session: ScriptedSession) -> None:
    closed: list[int] = []
    shown.closed.connect(lambda: closed.append(1))
    shown.applied.apply(Preferences(closes_to_tray=True))
    shown.close()
    assert not shown.isVisible()
    assert not session.is_stopped
    session.feed(StateChanged(SessionState.SPEAKING))
    shown.bridge.poll()
    assert tray_of(shown).icon.toolTip() == "MOSS Voice: Speaking"
    tray_of(shown).quit_action.trigger()
    assert session.is_stopped
    assert closed == [1]


@pytest.mark.slow
def test_a_tray_that_has_gone_does_not_swallow_the_window(
    shown: MainWindow, session: ScriptedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown.applied.apply(Preferences(closes_to_tray=True))
    monkeypatch.setattr(QSystemTrayIcon, "isSystemTrayAvailable", lambda: False)
    shown.close()
    assert session.is_stopped


@pytest.mark.parametrize("is_minimised", [True, False])
def test_a_window_that_starts_minimised_is_in_the_tray(shown: MainWindow, is_minimised: bool) -> None:
    shown.hide()
    shown.background.show_window(is_minimised=is_minimised)
    assert shown.isVisible() is not is_minimised


@pytest.mark.parametrize("is_minimised", [True, False])
@pytest.mark.slow
def test_without_a_tray_it_is_minimised(window: MainWindow, is_minimised: bool) -> None:
    window.hide()
    window.background.show_window(is_minimised=is_minimised)
    assert window.isVisible()
    assert window.isMinimized() is is_minimised
