"""A desktop portal with global shortcuts on a private session bus. Needs dbus-daemon and jeepney."""

from __future__ import annotations

import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

_CONFIG = """<busconfig>
<type>session</type>
<listen>unix:dir={folder}</listen>
<policy context="default">
<allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/>
</policy>
</busconfig>
"""
"""Starts no service, such as the portal of the computer that the tests run on."""
_PATH = "/org/freedesktop/portal/desktop"
_SHORTCUTS = "org.freedesktop.portal.GlobalShortcuts"
_REQUEST = "org.freedesktop.portal.Request"


class SessionBus:
    """A bus of its own, from `start` to `stop`; `address` is for DBUS_SESSION_BUS_ADDRESS."""

    def __init__(self) -> None:
        self.address = ""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        self._folder = tempfile.TemporaryDirectory()
        config = Path(self._folder.name) / "bus.conf"
        config.write_text(_CONFIG.format(folder=self._folder.name))
        command = ["dbus-daemon", f"--config-file={config}", "--nofork", "--nopidfile", "--print-address"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()

    def stop(self) -> None:
        """End it, with all its connections."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None
            self._folder.cleanup()


class Portal:
    """Answers requests in a thread of its own.

    Attributes:
        code: of the Response to BindShortcuts; 0 allows them, 1 means that the user does not.
        without_keys: ids that the user gives no keys.
        bound: the shortcuts that were asked for, as (id, description, proposed keys).
        names: application ids that were registered.
        closed: sessions that were closed.
    """

    def __init__(self, address: str, *, offers_shortcuts: bool = True) -> None:
        from jeepney import DBusAddress, message_bus
        from jeepney.io.blocking import open_dbus_connection

        self.code = 0
        self.without_keys: set[str] = set()
        self.bound: list[tuple[str, str, str]] = []
        self.names: list[str] = []
        self.closed: list[str] = []
        self._offers = offers_shortcuts
        self._session, self._program = "", ""
        self._ends = False
        self._address = DBusAddress
        self._bus: Any = open_dbus_connection(address)
        self._bus.send_and_get_reply(message_bus.RequestName("org.freedesktop.portal.Desktop"))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        """Leave the bus."""
        self._ends = True
        self._thread.join(60)
        self._bus.close()

    def press(self, name: str, token: str = "", session: str = "") -> None:
        """The keys of a shortcut go down; `session` is another program's."""
        options = {"activation_token": ("s", token)} if token else {}
        self._tell("Activated", (session or self._session, name, 1, options))

    def release(self, name: str) -> None:
        """They come up."""
        self._tell("Deactivated", (self._session, name, 2, {}))

    def _tell(self, member: str, body: tuple[Any, ...]) -> None:
        from jeepney import new_signal

        self._bus.send(new_signal(self._address(_PATH, interface=_SHORTCUTS), member, "osta{sv}", body))

    def _serve(self) -> None:
        while not self._ends:
            try:
                self._take(self._bus.receive(timeout=0.01))
            except TimeoutError:
                continue
            except OSError:  # the bus has ended
                return

    def _take(self, message: Any) -> None:
        from jeepney import MessageType, new_error, new_method_return, new_signal

        if message.header.message_type is not MessageType.method_call:
            return
        fields = {field.name: value for field, value in message.header.fields.items()}
        member, interface, body = fields["member"], fields.get("interface"), message.body
        if interface == "org.freedesktop.host.portal.Registry":
            self.names.append(body[0])
        elif member == "Close":
            self.closed.append(fields["path"])
        elif not self._offers:
            self._bus.send(new_error(message, "org.freedesktop.DBus.Error.UnknownMethod"))
            return
        if interface != _SHORTCUTS:
            self._bus.send(new_method_return(message))
            return
        options, sender = body[-1], fields["sender"].removeprefix(":").replace(".", "_")
        request = f"{_PATH}/request/{sender}/{options['handle_token'][1]}"
        self._bus.send(new_method_return(message, "o", (request,)))
        results: dict[str, Any] = {}
        code = 0
        if member == "CreateSession":
            self._session = f"{_PATH}/session/{sender}/{options['session_handle_token'][1]}"
            results = {"session_handle": ("s", self._session)}
        else:
            assert body[0] == self._session
            code = self.code
            self.bound = [
                (name, about["description"][1], about["preferred_trigger"][1]) for name, about in body[1]
            ]
            shortcuts = []
            for name, text, keys in self.bound:
                given = {} if name in self.without_keys else {"trigger_description": ("s", keys)}
                shortcuts.append((name, {"description": ("s", text), **given}))
            results = {"shortcuts": ("a(sa{sv})", shortcuts)}
        response = new_signal(
            self._address(request, interface=_REQUEST), "Response", "ua{sv}", (code, results)
        )
        self._bus.send(response)
