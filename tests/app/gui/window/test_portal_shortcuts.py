"""Global hotkeys of Wayland, asked of a double of the desktop portal on a private bus."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator

import pytest
from PySide6.QtCore import QKeyCombination
from pytestqt.qtbot import QtBot

from app.gui.common.key_combination import combination
from app.gui.window.global_hotkey import Action, GlobalHotkeys, Hotkey
from app.gui.window.portal_shortcuts import trigger_of
from app.paths import APPLICATION_ID
from engine_runtime.errors import MossVoiceError
from tests.doubles.desktop_portal import Portal, SessionBus


def keys_of(text: str) -> QKeyCombination:
    found = combination(text)
    assert found is not None
    return found


WANTED: dict[Action, Hotkey] = {
    "talk": Hotkey(keys_of("Ctrl+Alt+Space"), "hold to talk"),
    "mute": Hotkey(keys_of("Meta+Shift+M"), "mute the microphone"),
}


@pytest.mark.parametrize(
    ("text", "trigger"),
    [
        ("Ctrl+Alt+Space", "CTRL+ALT+space"),
        ("Meta+Shift+M", "SHIFT+LOGO+m"),
        ("F9", "F9"),
        ("Ctrl+PgUp", "CTRL+Prior"),
    ],
)
def test_keys_are_written_as_the_portal_does(text: str, trigger: str) -> None:
    assert trigger_of(keys_of(text)) == trigger


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> Iterator[SessionBus]:
    pytest.importorskip("jeepney")
    if shutil.which("dbus-daemon") is None:
        pytest.skip("dbus-daemon is not installed (apt install dbus-daemon)")
    bus = SessionBus()
    bus.start()
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", bus.address)
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    yield bus
    bus.stop()


@pytest.fixture
def portal(bus: SessionBus) -> Iterator[Portal]:
    portal = Portal(bus.address)
    yield portal
    portal.close()


class Listener:
    """The hotkeys of a window on that bus, and what they said."""

    def __init__(self, qtbot: QtBot) -> None:
        self._qtbot = qtbot
        self.said: list[tuple[str, ...]] = []
        self.errors: list[str] = []
        self.hotkeys = GlobalHotkeys()
        self.hotkeys.pressed.connect(lambda action, token: self.said.append(("pressed", action, token)))
        self.hotkeys.released.connect(lambda action: self.said.append(("released", action)))
        self.hotkeys.failed.connect(self._note)

    def _note(self, error: MossVoiceError) -> None:
        self.errors.append(str(error))

    def use(self, portal: Portal) -> None:
        """Bind, and wait until the portal was asked."""
        self.hotkeys.use(WANTED)
        self._qtbot.waitUntil(lambda: len(portal.bound) == len(WANTED))

    def await_error(self, words: str) -> None:
        self._qtbot.waitUntil(lambda: bool(self.errors))
        (error,) = self.errors
        assert words in error


@pytest.fixture
def listener(qtbot: QtBot) -> Iterator[Listener]:
    listener = Listener(qtbot)
    yield listener
    listener.hotkeys.use({})


@pytest.mark.slow
def test_shortcuts_are_bound_pressed_and_given_back(qtbot: QtBot, portal: Portal, listener: Listener) -> None:
    listener.use(portal)
    assert portal.names == [APPLICATION_ID]
    assert portal.bound == [
        ("talk", "hold to talk", "CTRL+ALT+space"),
        ("mute", "mute the microphone", "SHIFT+LOGO+m"),
    ]
    portal.press("talk")
    portal.press("talk", session="/another/program")
    portal.press("nothing")
    portal.release("talk")
    portal.press("mute", token="front")
    expected = [("pressed", "talk", ""), ("released", "talk"), ("pressed", "mute", "front")]
    qtbot.waitUntil(lambda: listener.said == expected)
    assert listener.errors == []
    other_words = {action: Hotkey(hotkey.keys, "...") for action, hotkey in WANTED.items()}
    listener.hotkeys.use(other_words)  # the same keys: nobody is asked again
    assert portal.closed == []
    listener.hotkeys.use({})
    qtbot.waitUntil(lambda: len(portal.closed) == 1)
    portal.press("talk")
    listener.use(portal)
    assert len(listener.said) == 3


@pytest.mark.slow
def test_a_user_who_does_not_allow_them_is_told_how_to_be_asked_again(
    portal: Portal, listener: Listener
) -> None:
    portal.code = 1
    listener.use(portal)
    listener.await_error("were not allowed. Choose keys in the settings")


@pytest.mark.slow
def test_a_shortcut_without_keys_is_named(portal: Portal, listener: Listener) -> None:
    """Keys that another program has: the desktop gives none."""
    portal.without_keys = {"mute"}
    listener.use(portal)
    listener.await_error(
        "no keys to: mute the microphone. Choose keys for MOSS Voice in the keyboard settings"
    )


@pytest.mark.slow
def test_a_portal_that_fails_is_reported(portal: Portal, listener: Listener) -> None:
    portal.code = 2
    listener.use(portal)
    listener.await_error("offers no global hotkeys")


@pytest.mark.slow
def test_a_portal_without_shortcuts_is_reported(bus: SessionBus, listener: Listener) -> None:
    portal = Portal(bus.address, offers_shortcuts=False)
    listener.hotkeys.use(WANTED)
    listener.await_error("offers no global hotkeys (UnknownMethod)")
    portal.close()


@pytest.mark.slow
def test_a_desktop_without_portal_is_reported(bus: SessionBus, listener: Listener) -> None:
    listener.hotkeys.use(WANTED)
    listener.await_error("offers no global hotkeys (ServiceUnknown). In the window")


@pytest.mark.slow
def test_a_bus_that_ends_is_reported(bus: SessionBus, portal: Portal, listener: Listener) -> None:
    listener.use(portal)
    bus.stop()
    listener.await_error("session bus is gone")


def test_a_bus_that_cannot_be_reached_is_reported(
    monkeypatch: pytest.MonkeyPatch, listener: Listener
) -> None:
    pytest.importorskip("jeepney")
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    for address in ("unix:path=/nowhere/bus", "nonsense"):
        monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", address)
        listener.errors.clear()
        listener.hotkeys.use({})
        listener.hotkeys.use(WANTED)
        listener.await_error("cannot be reached")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, listener: Listener) -> None:
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    monkeypatch.setitem(sys.modules, "jeepney", None)
    listener.hotkeys.use(WANTED)
    listener.await_error("needs the package jeepney")
