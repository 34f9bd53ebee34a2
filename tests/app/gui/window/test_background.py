"""The window with a tray, later starts of the program, and when the window is gone for good."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PySide6.QtCore import QRect, Qt
from PySide6.QtWidgets import QApplication, QSystemTrayIcon
from pytestqt.qtbot import QtBot

from app.gui.common.icons import Icons
from app.gui.common.preferences import Preferences, PreferenceStore
from app.gui.window import background
from app.gui.window.background import LaterStarts, Tray
from app.gui.window.main_window import MainWindow
from app.instance import MOST_BYTES, Answer, Instance, Knock, as_message, claim
from app.session.commands import Mute, Stop
from app.session.events import DevicesChanged, SessionState, StateChanged
from tests.doubles.scripted_session import ScriptedSession, opening


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the settings."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path / "settings"


@pytest.fixture
def starts(qtbot: QtBot, place: Path) -> Iterator[LaterStarts]:
    """The one that listens."""
    found = claim(place, Knock())
    assert isinstance(found, Instance)
    starts = LaterStarts(found)
    yield starts
    starts.shut_down()
    found.close()


def connect(place: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setblocking(False)
    name = json.loads((place / "window.lock").read_text())["socket"]
    descriptor = os.open(Path(name).parent, os.O_RDONLY)
    connection.connect(f"/proc/self/fd/{descriptor}/window")
    os.close(descriptor)
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Whether the window has closed it without an answer."""
    try:
        return connection.recv(MOST_BYTES) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_a_knock_is_answered(qtbot: QtBot, place: Path, starts: LaterStarts) -> None:
    knocks: list[Knock] = []
    starts.knocked.connect(knocks.append)
    with connect(place) as later:
        later.send(as_message(Knock(token="t")))
        qtbot.waitUntil(lambda: bool(knocks))
        assert json.loads(later.recv(MOST_BYTES))["pid"] == os.getpid()
    assert knocks == [Knock(token="t")]


@pytest.mark.parametrize("message", [b"{}}", b"x" * 10_000, b"[]"])
def test_what_is_no_knock_is_not_answered(
    qtbot: QtBot, place: Path, starts: LaterStarts, message: bytes
) -> None:
    knocks: list[Knock] = []
    starts.knocked.connect(knocks.append)
    with connect(place) as later:
        later.send(message)
        qtbot.waitUntil(lambda: is_closed(later))
    assert not knocks


def test_a_process_that_sends_nothing_stops_nobody(qtbot: QtBot, place: Path, starts: LaterStarts) -> None:
    knocks: list[Knock] = []
    starts.knocked.connect(knocks.append)
    silent = [connect(place) for _ in range(12)]
    with connect(place) as later:
        later.send(as_message(Knock()))
        qtbot.waitUntil(lambda: bool(knocks))
    assert is_closed(silent[0])
    for connection in silent:
        connection.close()


def test_another_user_is_not_answered(
    qtbot: QtBot, place: Path, starts: LaterStarts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "is_of_this_user", lambda _: False)
    with connect(place) as later:
        later.send(as_message(Knock()))
        qtbot.waitUntil(lambda: is_closed(later))


def test_nobody_listens_after_the_window_has_closed(qtbot: QtBot, place: Path, starts: LaterStarts) -> None:
    with connect(place) as waiting:
        starts.shut_down()
        assert is_closed(waiting)
    with pytest.raises(FileNotFoundError):
        connect(place)


@pytest.fixture
def shown(
    qtbot: QtBot, session: ScriptedSession, store: PreferenceStore, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MainWindow]:
    """A window on a desktop with a tray."""
    monkeypatch.setattr(QSystemTrayIcon, "isSystemTrayAvailable", lambda: True)
    window = MainWindow(session, store=store)
    window.show()
    window.start_session()
    session.feed(*opening())
    window.bridge.poll()
    session.commands.clear()
    yield window
    window.background.quit()
    window.deleteLater()


@pytest.fixture
def hidden(shown: MainWindow) -> MainWindow:
    """A window that is hidden in the tray."""
    shown.applied.apply(Preferences(closes_to_tray=True))
    shown.close()
    return shown


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


def test_the_icon_is_that_of_the_program(shown: MainWindow, icons: Icons) -> None:
    """Alone at rest; with a mark in its corner while something goes on."""
    icon = tray_of(shown).icon
    logo = icons.icon("moss-voice", "#000000").pixmap(64, 64).toImage()
    shown.bridge.state_changed.emit(StateChanged(SessionState.STOPPED))
    assert icon.icon().pixmap(64, 64).toImage() == logo
    half = QRect(0, 0, 24, 24)
    for state in (SessionState.LISTENING, SessionState.SPEAKING, SessionState.ERROR):
        shown.bridge.state_changed.emit(StateChanged(state))
        seen = icon.icon().pixmap(64, 64).toImage()
        assert seen != logo
        assert seen.copy(half) == logo.copy(half)
        assert seen.pixelColor(44, 26).name() == shown.header.badge.colour


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


@pytest.mark.parametrize("way", ["hidden", "minimised", "minimised from full size", "covered"])
def test_a_later_start_brings_the_window_back(shown: MainWindow, way: str) -> None:
    if way == "hidden":
        shown.hide()
    elif way != "covered":
        if way.endswith("size"):
            shown.showMaximized()
        shown.setWindowState(shown.windowState() | Qt.WindowState.WindowMinimized)
    shown.background.bring_to_front()
    assert shown.isVisible()
    assert not shown.isMinimized()
    assert shown.isMaximized() is way.endswith("size")


def test_a_later_start_brings_the_compact_window_back(shown: MainWindow) -> None:
    shown.modes.enter_compact()
    shown.modes.compact.showMinimized()
    shown.background.bring_to_front()
    assert shown.modes.compact.isVisible()
    assert not shown.modes.compact.isMinimized()
    assert not shown.isVisible()


@pytest.mark.parametrize(("platform", "token"), [("wayland", "a token"), ("xcb", None)])
def test_the_token_of_the_desktop_is_for_wayland(
    shown: MainWindow, monkeypatch: pytest.MonkeyPatch, platform: str, token: str | None
) -> None:
    given: dict[str, str] = {}
    monkeypatch.setattr(os, "putenv", given.__setitem__)
    monkeypatch.setattr(QApplication, "platformName", lambda: platform)
    shown.background.bring_to_front("a token")
    assert given.get("XDG_ACTIVATION_TOKEN") == token


def test_a_later_start_is_answered(shown: MainWindow, qtbot: QtBot, tmp_path: Path) -> None:
    first = claim(tmp_path, Knock())
    assert isinstance(first, Instance)
    shown.background.answer_later_starts(first)
    for knock, is_raised in ((Knock(raises=False), False), (Knock(), True)):
        shown.hide()
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(claim, tmp_path, knock)
            qtbot.waitUntil(answer.done)
        assert isinstance(answer.result(), Answer)
        assert shown.isVisible() is is_raised
    shown.background.quit()
    again = claim(tmp_path, Knock(), sleep=lambda _: first.close())  # nobody answers any more
    assert isinstance(again, Instance)
    again.close()


def test_a_hidden_window_comes_back_when_the_tray_is_gone(
    hidden: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = hidden.background.check_tray
    for _ in range(5):
        check()
    assert not hidden.isVisible()
    monkeypatch.setattr(QSystemTrayIcon, "isSystemTrayAvailable", lambda: False)
    check()
    check()
    assert not hidden.isVisible()  # a panel may just restart
    check()
    assert hidden.isVisible()
    assert "tray" in hidden.notice.text()


def test_a_tray_that_returns_in_time_keeps_the_window(
    hidden: MainWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_there in (False, False, True, False, False):
        monkeypatch.setattr(QSystemTrayIcon, "isSystemTrayAvailable", lambda: is_there)  # noqa: B023
        hidden.background.check_tray()
    assert not hidden.isVisible()


def test_a_panel_that_has_ended_is_no_tray(hidden: MainWindow, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of the icons is still there, and Qt asks for no more."""
    monkeypatch.setattr(background, "_is_hidden_by_desktop", lambda: True)
    for _ in range(3):
        hidden.background.check_tray()
    assert hidden.isVisible()
    hidden.close()  # for good
    assert tray_of(hidden).icon.isVisible() is False


def test_the_compact_window_needs_no_tray(shown: MainWindow, monkeypatch: pytest.MonkeyPatch) -> None:
    shown.modes.enter_compact()
    monkeypatch.setattr(QSystemTrayIcon, "isSystemTrayAvailable", lambda: False)
    for _ in range(5):
        shown.background.check_tray()
    assert not shown.isVisible()
