"""The hotkey of the desktop: what is said where it cannot be used, and the real one on an X server."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator

import pytest
from PySide6.QtCore import QKeyCombination
from PySide6.QtGui import QGuiApplication
from pytestqt.qtbot import QtBot

from app.gui.common.key_combination import combination
from app.gui.window.global_hotkey import (
    Action,
    GlobalHotkeys,
    Hotkey,
    X11Grabs,
    grab_of_desktop,
    portal_grab,
)
from app.gui.window.portal_shortcuts import HotkeyError
from engine_runtime.errors import MossVoiceError
from tests.doubles.x_server import XServer

WANTED = "Ctrl+Alt+T"


def wanted(text: str = WANTED) -> QKeyCombination:
    found = combination(text)
    assert found is not None
    return found


@pytest.fixture
def x11(monkeypatch: pytest.MonkeyPatch) -> None:
    """A desktop that says that it is X11."""
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("XDG_SESSION_TYPE", raising=False)
    monkeypatch.setattr(QGuiApplication, "platformName", lambda: "xcb")


def test_wayland_has_its_portal(x11: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    assert grab_of_desktop() is portal_grab


def test_other_platforms_are_named(x11: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QGuiApplication, "platformName", lambda: "offscreen")
    with pytest.raises(HotkeyError, match="supported on X11") as raised:
        grab_of_desktop()
    assert "window" in raised.value.what_to_do


def test_a_missing_package_is_named(x11: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Xlib", None)
    assert "python-xlib" in error_of(GlobalHotkeys())


def test_a_server_that_is_away_is_reported(x11: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":987")
    assert "cannot be used for hotkeys" in error_of(GlobalHotkeys())


def error_of(hotkeys: GlobalHotkeys) -> str:
    """What is said where the hotkey of push-to-talk cannot be used."""
    errors: list[str] = []
    hotkeys.failed.connect(lambda error: errors.append(str(error)))
    hotkeys.use({"talk": Hotkey(wanted(), "talk")})
    (error,) = errors
    return error


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[XServer]:
    if shutil.which("Xvfb") is None:
        pytest.skip("Xvfb is not installed")
    server = XServer()
    server.start()
    monkeypatch.setenv("DISPLAY", server.display)
    yield server
    server.stop()


class Listener:
    """A hotkey on a real X server, and what it said."""

    def __init__(self, qtbot: QtBot, server: XServer) -> None:
        self._qtbot, self._server = qtbot, server
        self.said: list[str] = []
        self.errors: list[MossVoiceError] = []
        self.hotkeys = GlobalHotkeys(grab=X11Grabs)
        self.hotkeys.pressed.connect(lambda action, _: self.said.append(f"{action} pressed"))
        self.hotkeys.released.connect(lambda action: self.said.append(f"{action} released"))
        self.hotkeys.failed.connect(self.errors.append)

    def use(self, talk: str = "", mute: str = "") -> None:
        """Grab these combinations."""
        chosen: dict[Action, str] = {"talk": talk, "mute": mute}
        self.hotkeys.use({action: Hotkey(wanted(text), action) for action, text in chosen.items() if text})

    def keys(self, *keys: str) -> None:
        """Press ("+x") and release ("-x") keys."""
        for key in keys:
            self._server.key(key[1:], is_down=key[0] == "+")

    def await_said(self, *said: str) -> None:
        self._qtbot.waitUntil(lambda: self.said == list(said))


@pytest.mark.slow
def test_the_server_delivers_this_combination_alone(qtbot: QtBot, server: XServer) -> None:
    listener = Listener(qtbot, server)
    listener.use(WANTED)
    listener.keys("+t", "-t", "+Control_L", "+t", "-t", "-Control_L")
    listener.keys("+Control_L", "+Alt_L", "+t")
    listener.await_said("talk pressed")
    listener.keys("+u", "-u", "-Alt_L")
    listener.keys("-t", "-Control_L")
    listener.await_said("talk pressed", "talk released")
    listener.keys("+Num_Lock", "-Num_Lock", "+Control_L", "+Alt_L", "+t", "-t", "-Alt_L", "-Control_L")
    listener.await_said(*["talk pressed", "talk released"] * 2)
    listener.use()
    listener.keys("+Control_L", "+Alt_L", "+t", "-t", "-Alt_L", "-Control_L")
    qtbot.wait(50)
    assert len(listener.said) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "symbol"),
    [("Ctrl+Space", "space"), ("Alt+Home", "Home"), ("Ctrl+PgUp", "Prior"), ("Ctrl+-", "minus")],
)
def test_keys_are_found_on_the_keyboard(qtbot: QtBot, server: XServer, text: str, symbol: str) -> None:
    listener = Listener(qtbot, server)
    listener.use(text)
    modifiers = {"Ctrl": ["Control_L"], "Alt": ["Alt_L"]}.get(text.partition("+")[0], [])
    listener.keys(*(f"+{key}" for key in [*modifiers, symbol]), *(f"-{key}" for key in [symbol, *modifiers]))
    listener.await_said("talk pressed", "talk released")
    listener.use()


@pytest.mark.slow
def test_a_key_that_repeats_is_held(qtbot: QtBot, server: XServer) -> None:
    listener = Listener(qtbot, server)
    listener.use("F9")
    listener.keys("+F9")
    qtbot.wait(1_000)  # Xvfb repeats after 660 ms
    assert listener.said == ["talk pressed"]
    listener.keys("-F9")
    listener.await_said("talk pressed", "talk released")
    listener.use()


@pytest.mark.slow
def test_a_hotkey_of_another_program_is_reported(qtbot: QtBot, server: XServer) -> None:
    other, listener = Listener(qtbot, server), Listener(qtbot, server)
    other.use(WANTED)
    listener.use(WANTED, mute="F9")
    (error,) = listener.errors
    assert "Another program" in error.what_is_wrong
    assert "other keys" in error.what_to_do
    listener.keys("+F9", "-F9")
    listener.await_said("mute pressed", "mute released")  # the other one is used
    other.use()
    listener.use(WANTED)  # free again
    listener.use()
