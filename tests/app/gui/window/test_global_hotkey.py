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
from app.gui.window.global_hotkey import GlobalHotkey, HotkeyError, X11Grab, grab_of_desktop
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


def test_wayland_is_named(x11: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    with pytest.raises(HotkeyError, match="Wayland"):
        grab_of_desktop()


def test_other_platforms_are_named(x11: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QGuiApplication, "platformName", lambda: "offscreen")
    with pytest.raises(HotkeyError, match="X11 only") as raised:
        grab_of_desktop()
    assert "window" in raised.value.what_to_do


def test_a_missing_package_is_named(x11: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Xlib", None)
    with pytest.raises(HotkeyError, match="python-xlib"):
        GlobalHotkey().grab(wanted())


def test_a_server_that_is_away_is_reported(x11: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":987")
    with pytest.raises(HotkeyError, match="cannot be used for hotkeys"):
        GlobalHotkey().grab(wanted())


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
        self.hotkey = GlobalHotkey(grab=X11Grab)
        self.hotkey.pressed.connect(lambda: self.said.append("pressed"))
        self.hotkey.released.connect(lambda: self.said.append("released"))

    def keys(self, *keys: str) -> None:
        """Press ("+x") and release ("-x") keys."""
        for key in keys:
            self._server.key(key[1:], is_down=key[0] == "+")

    def await_said(self, *said: str) -> None:
        self._qtbot.waitUntil(lambda: self.said == list(said))


@pytest.mark.slow
def test_the_server_delivers_this_combination_alone(qtbot: QtBot, server: XServer) -> None:
    listener = Listener(qtbot, server)
    listener.hotkey.grab(wanted())
    listener.keys("+t", "-t", "+Control_L", "+t", "-t", "-Control_L")
    listener.keys("+Control_L", "+Alt_L", "+t")
    listener.await_said("pressed")
    listener.keys("+u", "-u", "-Alt_L")
    listener.keys("-t", "-Control_L")
    listener.await_said("pressed", "released")
    listener.keys("+Num_Lock", "-Num_Lock", "+Control_L", "+Alt_L", "+t", "-t", "-Alt_L", "-Control_L")
    listener.await_said(*["pressed", "released"] * 2)
    listener.hotkey.grab(None)
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
    listener.hotkey.grab(wanted(text))
    modifiers = {"Ctrl": ["Control_L"], "Alt": ["Alt_L"]}.get(text.partition("+")[0], [])
    listener.keys(*(f"+{key}" for key in [*modifiers, symbol]), *(f"-{key}" for key in [symbol, *modifiers]))
    listener.await_said("pressed", "released")
    listener.hotkey.grab(None)


@pytest.mark.slow
def test_a_key_that_repeats_is_held(qtbot: QtBot, server: XServer) -> None:
    listener = Listener(qtbot, server)
    listener.hotkey.grab(wanted("F9"))
    listener.keys("+F9")
    qtbot.wait(1_000)  # Xvfb repeats after 660 ms
    assert listener.said == ["pressed"]
    listener.keys("-F9")
    listener.await_said("pressed", "released")
    listener.hotkey.grab(None)


@pytest.mark.slow
def test_a_hotkey_of_another_program_is_reported(qtbot: QtBot, server: XServer) -> None:
    other, listener = Listener(qtbot, server), Listener(qtbot, server)
    other.hotkey.grab(wanted())
    with pytest.raises(HotkeyError, match="Another program") as raised:
        listener.hotkey.grab(wanted())
    assert "other keys" in raised.value.what_to_do
    listener.hotkey.grab(wanted("F9"))
    listener.keys("+F9", "-F9")
    listener.await_said("pressed", "released")
    other.hotkey.grab(None)
    listener.hotkey.grab(wanted())  # free again
    listener.hotkey.grab(None)
