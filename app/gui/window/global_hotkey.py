"""The global hotkeys, on desktops that allow some: X11, and Wayland by its portal.

In: a key combination for each action. Out: `pressed` and `released` with the action, `failed`. The X server
grabs these combinations alone, so no other key is ever seen here; it refuses one in use by another program.
A portal (portal_shortcuts.py) asks the user. GUI thread, no own thread: Qt watches the connections.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

from PySide6.QtCore import QKeyCombination, QObject, QSocketNotifier, Qt, Signal
from PySide6.QtGui import QGuiApplication, QKeySequence

from app.gui.common.key_combination import X_NAMES
from app.gui.window.portal_shortcuts import IN_WINDOW, HotkeyError, PortalShortcuts
from engine_runtime import installation
from engine_runtime.errors import MossVoiceError

Action = Literal["talk", "mute", "window"]
"""What a hotkey does: push-to-talk while it is held; mute; show or hide the window."""


@dataclass(frozen=True, slots=True)
class Hotkey:
    """A combination, and what it does in words of the user, which a portal shows."""

    keys: QKeyCombination
    description: str


class HotkeyGrab(Protocol):
    """Combinations that are grabbed from the desktop."""

    def ungrab(self) -> None:
        """Give them back."""


@dataclass(frozen=True, slots=True)
class HotkeyEvents:
    """Where the grab of a desktop reports: the action that was pressed, with the token by which the desktop
    lets a window come to the front ("" for none), the one that was released, and why one cannot be used."""

    press: Callable[[str, str], None]
    release: Callable[[str], None]
    fail: Callable[[MossVoiceError], None]


GrabFactory = Callable[[Mapping[Action, Hotkey], HotkeyEvents], HotkeyGrab]


class GlobalHotkeys(QObject):
    """At most one combination for each action.

    Signals:
        pressed: the combination of an action went down, in whatever window; the action, and a token for
            `Background.bring_to_front`.
        released: it came up; the action.
        failed: a combination cannot be used; a `MossVoiceError`.
        replaced: others were chosen; what failed of those before is over.
    """

    pressed = Signal(str, str)
    released = Signal(str)
    failed = Signal(object)
    replaced = Signal()

    def __init__(self, parent: QObject | None = None, grab: GrabFactory | None = None) -> None:
        super().__init__(parent)
        self._make = grab
        self._grab: HotkeyGrab | None = None
        self._keys: dict[Action, QKeyCombination] = {}

    def use(self, wanted: Mapping[Action, Hotkey]) -> None:
        """Use these combinations instead of those before. One that another action has is left out."""
        keys = {action: hotkey.keys for action, hotkey in wanted.items()}
        if keys == self._keys:  # another language is no reason for a portal to ask again
            return
        self._keys = keys
        self.replaced.emit()
        if self._grab is not None:
            self._grab.ungrab()
            self._grab = None
        free = self._without_conflicts(wanted)
        if not free:
            return
        try:
            make = self._make or grab_of_desktop()
            self._grab = make(free, HotkeyEvents(self.pressed.emit, self.released.emit, self.failed.emit))
        except MossVoiceError as error:
            self.failed.emit(error)

    def _without_conflicts(self, wanted: Mapping[Action, Hotkey]) -> dict[Action, Hotkey]:
        free: dict[Action, Hotkey] = {}
        for action, hotkey in wanted.items():
            first = next((known for known in free.values() if known.keys == hotkey.keys), None)
            if first is None:
                free[action] = hotkey
                continue
            self.failed.emit(
                HotkeyError(
                    "The hotkey {name} is chosen twice: {first} and {second}.",
                    "Choose other keys in the settings.",
                    name=QKeySequence(hotkey.keys).toString(QKeySequence.SequenceFormat.NativeText),
                    first=first.description,
                    second=hotkey.description,
                )
            )
        return free


def grab_of_desktop() -> GrabFactory:
    """The means to grab combinations on this desktop. HotkeyError if it allows none."""
    if os.environ.get("XDG_SESSION_TYPE") == "wayland" or os.environ.get("WAYLAND_DISPLAY"):
        return portal_grab
    if sys.platform != "linux" or QGuiApplication.platformName() != "xcb":
        raise HotkeyError("Global hotkeys are supported on X11 and by the portal of Wayland only.", IN_WINDOW)
    return X11Grabs


def portal_grab(wanted: Mapping[Action, Hotkey], events: HotkeyEvents) -> HotkeyGrab:
    """Combinations that the desktop portal asks the user for."""
    known = {action: (hotkey.description, hotkey.keys) for action, hotkey in wanted.items()}
    return PortalShortcuts(known, events.press, events.release, events.fail)


class X11Grabs:
    """Combinations that are grabbed from the X server; of those that it refuses the rest are used."""

    def __init__(self, wanted: Mapping[Action, Hotkey], events: HotkeyEvents) -> None:
        self._grabs: list[X11Grab] = []
        for action, hotkey in wanted.items():
            try:
                grab = X11Grab(
                    hotkey.keys, partial(events.press, action, ""), partial(events.release, action)
                )
            except MossVoiceError as error:
                events.fail(error)
            else:
                self._grabs.append(grab)

    def ungrab(self) -> None:
        """Release them all."""
        for grab in self._grabs:
            grab.ungrab()


class X11Grab:
    """One combination, grabbed from the X server with XGrabKey (package python-xlib)."""

    def __init__(
        self, wanted: QKeyCombination, on_press: Callable[[], None], on_release: Callable[[], None]
    ) -> None:
        """HotkeyError if the package is missing, the server cannot be reached, the keyboard has no such key,
        or another program uses the combination."""
        try:
            from Xlib import X, display, error
        except ImportError as failure:
            raise HotkeyError(
                "A global hotkey needs the package python-xlib, which is not installed.",
                "{in_window} {remedy}",
                in_window=IN_WINDOW,
                remedy=installation.add("hotkey"),
            ) from failure
        self._x = X
        self._on_press, self._on_release = on_press, on_release
        self._is_held = False
        self._released_at: int | None = None
        """By the server's clock."""
        try:
            self._display: Any = display.Display()
        except (error.DisplayError, OSError) as failure:
            raise HotkeyError(
                "The X server cannot be used for hotkeys ({failure}).", IN_WINDOW, failure=failure
            ) from failure
        name = QKeySequence(wanted).toString(QKeySequence.SequenceFormat.NativeText)
        self._key = self._code_of(wanted.key())
        if not self._key:
            self._display.close()
            raise HotkeyError(
                "This keyboard has no key for {name}.", "Choose other keys in the settings.", name=name
            )
        refused = error.CatchError(error.BadAccess)
        root = self._display.screen().root
        for modifiers in self._masks(wanted.keyboardModifiers()):
            root.grab_key(self._key, modifiers, False, X.GrabModeAsync, X.GrabModeAsync, onerror=refused)
        self._display.sync()
        if refused.get_error() is not None:
            self._display.close()  # with its grabs
            raise HotkeyError(
                "Another program uses the hotkey {name}.", "Choose other keys in the settings.", name=name
            )
        self._notifier = QSocketNotifier(self._display.fileno(), QSocketNotifier.Type.Read)
        self._notifier.activated.connect(self._read)

    def ungrab(self) -> None:
        """Release the combination and close the connection."""
        self._notifier.setEnabled(False)
        self._display.close()

    def _code_of(self, key: Qt.Key) -> int:
        from Xlib import XK

        name = QKeySequence(key).toString(QKeySequence.SequenceFormat.PortableText)
        known = XK.string_to_keysym(X_NAMES.get(name, name))
        symbol = ord(name.lower()) if len(name) == 1 else known  # the symbols of Latin-1 are its characters
        return int(self._display.keysym_to_keycode(symbol))

    def _masks(self, modifiers: Qt.KeyboardModifier) -> list[int]:
        """The modifiers for the server, with Caps Lock and Num Lock on and off."""
        x, wanted = self._x, 0
        for modifier, mask in (
            (Qt.KeyboardModifier.ShiftModifier, x.ShiftMask),
            (Qt.KeyboardModifier.ControlModifier, x.ControlMask),
            (Qt.KeyboardModifier.AltModifier, x.Mod1Mask),
            (Qt.KeyboardModifier.MetaModifier, x.Mod4Mask),
        ):
            wanted |= mask if modifiers & modifier else 0
        return [wanted | locks for locks in (0, x.LockMask, x.Mod2Mask, x.LockMask | x.Mod2Mask)]

    def _read(self) -> None:
        """What the server sent: presses and releases while the combination is down."""
        try:
            while self._display.pending_events():
                self._follow(self._display.next_event())
        except OSError:  # the server has gone, and soon the window
            self._notifier.setEnabled(False)

    def _follow(self, event: Any) -> None:
        if getattr(event, "detail", None) != self._key:
            return
        is_repetition = event.time == self._released_at  # comes up and goes down at one time
        if event.type == self._x.KeyPress and not self._is_held and not is_repetition:
            self._is_held = True
            self._on_press()
        elif event.type == self._x.KeyRelease and self._is_held and not self._is_down():
            self._is_held = False
            self._released_at = event.time
            self._on_release()

    def _is_down(self) -> bool:
        """Whether the key is down: a key that repeats sends releases, too."""
        keymap = self._display.query_keymap()
        return bool(keymap[self._key // 8] >> self._key % 8 & 1)
