"""An X server without a screen, for tests of what is asked of the X server. Needs Xvfb."""

from __future__ import annotations

import os
import subprocess
from typing import Any


class XServer:
    """Runs from `start` to `stop`; `display` is its name."""

    def __init__(self, screen: str = "320x200x24") -> None:
        self.display = ""
        self._screen = screen
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        read, write = os.pipe()
        command = [
            "Xvfb",
            "-displayfd",
            str(write),
            "-screen",
            "0",
            self._screen,
            "-nolisten",
            "tcp",
            "-noreset",
        ]
        self._process = subprocess.Popen(command, pass_fds=[write], stderr=subprocess.DEVNULL)
        os.close(write)
        with os.fdopen(read, "rb") as number:
            self.display = f":{number.readline().decode().strip()}"

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)

    def key(self, name: str, *, is_down: bool) -> None:
        """Press or release a key, by the name of its symbol."""
        from Xlib import XK, X
        from Xlib.ext import xtest

        connection = self.connect()
        code = connection.keysym_to_keycode(XK.string_to_keysym(name))
        xtest.fake_input(connection, X.KeyPress if is_down else X.KeyRelease, code)
        connection.sync()
        connection.close()

    def connect(self) -> Any:
        """Another program of this desktop."""
        from Xlib.display import Display

        return Display(self.display)
