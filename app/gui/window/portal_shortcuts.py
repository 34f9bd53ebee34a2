"""Global hotkeys by the desktop portal (org.freedesktop.portal.GlobalShortcuts), as Wayland has them.

In: what each shortcut does, and the keys that are proposed for it. Out: the shortcuts that are pressed and
released. The portal asks the user, who may choose other keys or none; no other key is ever seen here. One
session on the session bus, ended by `ungrab`.

The messages go through the package jeepney: QtDBus has no type for the list of shortcuts, a(sa{sv}), and
PySide6 offers no way to register one (libdbus ends the process at the attempt). GUI thread, no own thread: Qt
watches the connection, and only the authentication waits for an answer, that of the local bus.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from PySide6.QtCore import QKeyCombination, QSocketNotifier, Qt
from PySide6.QtGui import QKeySequence

from app.gui.common.key_combination import X_NAMES
from app.paths import APPLICATION_ID
from engine_runtime import installation
from engine_runtime.errors import MossVoiceError

IN_WINDOW = "In the window push-to-talk works with its keys, and Ctrl+M mutes."
_BUS = "org.freedesktop.DBus"
_PORTAL = "org.freedesktop.portal.Desktop"
_PATH = "/org/freedesktop/portal/desktop"
_SHORTCUTS = "org.freedesktop.portal.GlobalShortcuts"
_REQUEST = "org.freedesktop.portal.Request"
_REGISTRY = "org.freedesktop.host.portal.Registry"
_MODIFIERS = (
    (Qt.KeyboardModifier.ControlModifier, "CTRL"),
    (Qt.KeyboardModifier.AltModifier, "ALT"),
    (Qt.KeyboardModifier.ShiftModifier, "SHIFT"),
    (Qt.KeyboardModifier.MetaModifier, "LOGO"),
)
_DONE, _CANCELLED = 0, 1
"""Codes of a portal's Response."""


class HotkeyError(MossVoiceError):
    """A combination that cannot be used on the whole desktop."""


def trigger_of(keys: QKeyCombination) -> str:
    """A combination as the portal writes it (shortcuts specification of freedesktop.org): CTRL+ALT+space."""
    name = QKeySequence(keys.key()).toString(QKeySequence.SequenceFormat.PortableText)
    symbol = name.lower() if len(name) == 1 else X_NAMES.get(name, name)
    modifiers = [text for modifier, text in _MODIFIERS if keys.keyboardModifiers() & modifier]
    return "+".join([*modifiers, symbol])


class PortalShortcuts:
    """The shortcuts of one session."""

    def __init__(
        self,
        wanted: Mapping[Any, tuple[str, QKeyCombination]],
        press: Callable[[str, str], None],
        release: Callable[[str], None],
        fail: Callable[[MossVoiceError], None],
    ) -> None:
        """`wanted` has a description and the proposed keys for each id. `press` gets the id and the token by
        which a window may come to the front, "" for none. HotkeyError if the bus cannot be reached; what the
        portal answers later goes to `fail`."""
        try:
            from jeepney import DBusAddress, MessageType, new_method_call
            from jeepney.auth import AuthenticationError
            from jeepney.io.blocking import open_dbus_connection
        except ImportError as failure:
            raise HotkeyError(
                "A global hotkey on Wayland needs the package jeepney, which is not installed.",
                "{in_window} {remedy}",
                in_window=IN_WINDOW,
                remedy=installation.add("hotkey"),
            ) from failure
        self._wanted = dict(wanted)
        self._press, self._release, self._fail = press, release, fail
        self._new_call, self._address, self._kinds = new_method_call, DBusAddress, MessageType
        self._session = ""
        self._answers: dict[int, Callable[[Any], None]] = {}
        """Serial number of a call -> what takes its answer."""
        self._responses: dict[str, Callable[[dict[str, Any]], None]] = {}
        """Path of a request -> what takes its results."""
        try:
            self._bus: Any = open_dbus_connection("SESSION")
        except (OSError, KeyError, ValueError, AuthenticationError) as failure:
            raise HotkeyError(
                "The session bus, by which Wayland gives global hotkeys, cannot be reached ({failure}).",
                IN_WINDOW,
                failure=type(failure).__name__,
            ) from failure
        self._notifier = QSocketNotifier(self._bus.sock.fileno(), QSocketNotifier.Type.Read)
        self._notifier.activated.connect(self._read)
        self._begin()

    def ungrab(self) -> None:
        """End the session and close the connection."""
        self._notifier.setEnabled(False)
        with contextlib.suppress(OSError):
            if self._session:
                session = self._address(self._session, _PORTAL, "org.freedesktop.portal.Session")
                self._bus.send(self._new_call(session, "Close"))
            self._bus.close()
        self._session = ""

    # ---- the conversation with the portal, step by step ----

    def _begin(self) -> None:
        for rule in (
            f"type='signal',interface='{_REQUEST}',member='Response'",
            f"type='signal',interface='{_SHORTCUTS}'",
        ):
            self._call(("/org/freedesktop/DBus", _BUS, _BUS), "AddMatch", "s", (rule,))
        # A program outside of a sandbox has no name for the portal otherwise. Older portals lack the call.
        self._call((_PATH, _PORTAL, _REGISTRY), "Register", "sa{sv}", (APPLICATION_ID, {}))
        options = {"session_handle_token": ("s", _token())}
        self._ask("CreateSession", "", (), options, self._take_session)

    def _take_session(self, results: dict[str, Any]) -> None:
        self._session = str(results.get("session_handle", ""))
        shortcuts = [
            (action, {"description": ("s", description), "preferred_trigger": ("s", trigger_of(keys))})
            for action, (description, keys) in self._wanted.items()
        ]
        self._ask("BindShortcuts", "oa(sa{sv})s", (self._session, shortcuts, ""), {}, self._take_shortcuts)

    def _take_shortcuts(self, results: dict[str, Any]) -> None:
        bound = {name for name, about in results.get("shortcuts", ()) if about.get("trigger_description")}
        bare = [description for name, (description, _) in self._wanted.items() if name not in bound]
        if bare:
            self._fail(
                HotkeyError(
                    "The desktop has given no keys to: {names}.",
                    "Choose keys for MOSS Voice in the keyboard settings of the desktop.",
                    names=", ".join(bare),
                )
            )

    def _take_signal(self, member: str, body: tuple[Any, ...]) -> None:
        if len(body) < 4 or body[0] != self._session or body[1] not in self._wanted:
            return
        if member == "Activated":
            token = _plain(body[3]).get("activation_token", "")
            self._press(body[1], token if isinstance(token, str) else "")
        elif member == "Deactivated":
            self._release(body[1])

    # ---- messages ----

    def _ask(
        self,
        method: str,
        signature: str,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        take: Callable[[dict[str, Any]], None],
    ) -> None:
        """Call a method of the portal that answers by a request's Response."""
        token = _token()
        sender = self._bus.unique_name.removeprefix(":").replace(".", "_")
        # Known before the call, so that no response is missed.
        self._responses[f"{_PATH}/request/{sender}/{token}"] = take
        arguments = (*arguments, {"handle_token": ("s", token), **options})
        self._call((_PATH, _PORTAL, _SHORTCUTS), method, f"{signature}a{{sv}}", arguments, self._refuse)

    def _call(
        self,
        to: tuple[str, str, str],
        method: str,
        signature: str,
        arguments: tuple[Any, ...],
        refuse: Callable[[str], None] | None = None,
    ) -> None:
        """`refuse` gets the name of an error."""
        path, name, interface = to
        message = self._new_call(self._address(path, name, interface), method, signature, arguments)
        serial = next(self._bus.outgoing_serial)
        if refuse is not None:
            self._answers[serial] = refuse
        try:
            self._bus.send(message, serial=serial)
        except OSError:
            self._lose()

    def _refuse(self, error: str) -> None:
        self._fail(
            HotkeyError(
                "The portal of this desktop offers no global hotkeys ({error}).", IN_WINDOW, error=error
            )
        )

    def _read(self) -> None:
        """All messages that have come."""
        while self._notifier.isEnabled():
            try:
                message = self._bus.receive(timeout=0)
            except TimeoutError:
                return
            except (OSError, ValueError):  # the bus is gone, or talks nonsense
                self._lose()
                return
            self._take(message)

    def _lose(self) -> None:
        self._notifier.setEnabled(False)
        self._session = ""
        self._fail(HotkeyError("The session bus is gone, and the global hotkeys with it.", IN_WINDOW))

    def _take(self, message: Any) -> None:
        fields = {field.name: value for field, value in message.header.fields.items()}
        kind, body = message.header.message_type, message.body
        if kind in (self._kinds.error, self._kinds.method_return):
            refuse = self._answers.pop(fields["reply_serial"], None)
            if refuse is not None and kind is self._kinds.error:
                refuse(fields.get("error_name", "").rpartition(".")[2])
        elif kind is not self._kinds.signal:
            return
        elif fields.get("interface") == _REQUEST and fields.get("path") in self._responses:
            self._take_response(self._responses.pop(fields["path"]), *body)
        elif fields.get("interface") == _SHORTCUTS:
            self._take_signal(fields["member"], body)

    def _take_response(
        self, take: Callable[[dict[str, Any]], None], code: int, results: dict[str, Any]
    ) -> None:
        if code == _DONE:
            take(_plain(results))
        elif code == _CANCELLED:
            self._fail(
                HotkeyError(
                    "The global hotkeys were not allowed.", "Choose keys in the settings to be asked again."
                )
            )
        else:
            self._refuse("Response")


def _plain(value: Any) -> Any:
    """A value without the signatures of its variants."""
    if isinstance(value, dict):
        return {name: _plain(part[1]) for name, part in value.items()}
    return value


def _token() -> str:
    return f"moss_voice_{secrets.token_hex(8)}"
