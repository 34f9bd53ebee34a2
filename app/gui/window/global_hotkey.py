"""The global hotkey of push-to-talk, on desktops that allow one: X11.

In: a key combination. Out: `pressed` and `released`. The X server grabs this one combination, so no
other key is ever seen here; it refuses one in use by another program. GUI thread, no own thread: Qt watches
the connection.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

from PySide6.QtCore import QKeyCombination, QObject, QSocketNotifier, Qt, Signal
from PySide6.QtGui import QGuiApplication, QKeySequence

from engine_runtime import installation
from engine_runtime.errors import MossVoiceError

_IN_WINDOW = "The keys still work in the window."
_X_NAMES = {
    "Backspace": "BackSpace",
    "Del": "Delete",
    "Esc": "Escape",
    "Ins": "Insert",
    "PgDown": "Next",
    "PgUp": "Prior",
    "ScrollLock": "Scroll_Lock",
    "Space": "space",
}
"""Keys that the X server names differently from Qt."""


class HotkeyError(MossVoiceError):
    """A combination that cannot be used on the whole desktop."""


class HotkeyGrab(Protocol):
    """A combination that is grabbed from the desktop."""

    def ungrab(self) -> None:
        """Give it back."""


GrabFactory = Callable[[QKeyCombination, Callable[[], None], Callable[[], None]], HotkeyGrab]


class GlobalHotkey(QObject):
    """At most one combination at a time.

    Signals:
        pressed, released: the combination went down or up, in whatever window.
    """

    pressed = Signal()
    released = Signal()

    def __init__(self, parent: QObject | None = None, grab: GrabFactory | None = None) -> None:
        super().__init__(parent)
        self._make = grab
        self._grab: HotkeyGrab | None = None

    def grab(self, wanted: QKeyCombination | None) -> None:
        """Use this combination instead of the one before, or none. HotkeyError if it cannot be used."""
        if self._grab is not None:
            self._grab.ungrab()
            self._grab = None
        if wanted is not None:
            make = self._make or grab_of_desktop()
            self._grab = make(wanted, self.pressed.emit, self.released.emit)


def grab_of_desktop() -> GrabFactory:
    """The means to grab a combination on this desktop. HotkeyError if it allows none."""
    if os.environ.get("XDG_SESSION_TYPE") == "wayland" or os.environ.get("WAYLAND_DISPLAY"):
        raise HotkeyError(
            "This desktop runs on Wayland, where no program gets the keys of other windows.", _IN_WINDOW
        )
    if sys.platform != "linux" or QGuiApplication.platformName() != "xcb":
        raise HotkeyError("Global hotkeys are supported on X11 only.", _IN_WINDOW)
    return X11Grab


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
                in_window=_IN_WINDOW,
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
                "The X server cannot be used for hotkeys ({failure}).", _IN_WINDOW, failure=failure
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
        known = XK.string_to_keysym(_X_NAMES.get(name, name))
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
