"""The key of the server that the settings name, in a file that only this user can read.

In: the key, an address that was saved. Out: both, if they can be used. The key is in no log and in no other
file. GUI thread.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from app.server_address import AddressError, parse_address

_log = logging.getLogger(__name__)


class ServerKey:
    """One file; there is none without a key."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def load(self, server: str) -> tuple[str, str]:
        """The address and the key; two empty texts if they cannot be used, as after the file was edited."""
        if not server:
            return "", ""
        try:
            key = self._file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            key = ""
        try:
            parse_address(server, key)
        except AddressError as error:
            _log.warning("the server of the settings is not used: %s", error)
            return "", ""
        return server, key

    def save(self, key: str) -> bool:
        """Keep the key, or remove it if it is empty; False if that is not possible."""
        fresh = self._file.with_suffix(".fresh")
        try:
            if not key:
                self._file.unlink(missing_ok=True)
                return True
            fresh.unlink(missing_ok=True)
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
                stream.write(f"{key}\n")
            fresh.replace(self._file)
        except OSError as error:
            _log.warning("the key of the server cannot be kept: %s", error)
            return False
        return True
