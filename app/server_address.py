"""Where a Realtime server is, and the key for it.

In: what the user wrote, a file or the environment. Out: a `ServerAddress`, or `AddressError`. The key is in
no text that this module makes. Any thread.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit, urlunsplit

from engine_runtime.errors import MossVoiceError, Problem

KEY_VARIABLE = "MOSS_VOICE_SERVER_KEY"
_PATH = "/v1/realtime"
_SCHEMES = {"ws": "ws", "http": "ws", "wss": "wss", "https": "wss"}


class AddressError(MossVoiceError):
    """An address or a key that cannot be used."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """One server."""

    url: str
    """ws:// or wss://, with its path."""
    key: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        """Host and port, for messages."""
        return urlsplit(self.url).netloc

    @property
    def is_encrypted(self) -> bool:
        """Whether TLS is used."""
        return self.url.startswith("wss:")

    @property
    def is_loopback(self) -> bool:
        """Whether the server is on this machine."""
        host = urlsplit(self.url).hostname or ""
        try:
            return host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    @property
    def warning(self) -> Problem | None:
        """A warning before anything is said to this server, or None."""
        if self.is_encrypted or self.is_loopback:
            return None
        return Problem(
            "What you say goes to {server} without encryption, so others on the network can listen.",
            "Use wss://, or an SSH tunnel to a port of this machine.",
            server=self.name,
        )


def parse_address(text: str, key: str = "") -> ServerAddress:
    """The server of `text`: an address of ws://, wss://, http:// or https://, or host and port alone. Without
    a path it is that of the protocol. AddressError if it is none, or the key would cross a network in clear
    text."""
    try:
        parts = urlsplit(text if "://" in text else f"ws://{text}")
        is_usable = bool(parts.hostname) and parts.scheme in _SCHEMES and parts.port != 0
    except ValueError:  # a port that is no number, half an IPv6 address
        is_usable = False
    if not is_usable or any(character.isspace() for character in text):
        raise AddressError(
            "{text!r} is not a valid server address.",
            "Write it as ws://127.0.0.1:8000 or wss://voice.example.org.",
            text=text,
        )
    if parts.username or parts.password:
        raise AddressError("The server address contains a password.", "Pass the key separately.")
    path = parts.path if parts.path.strip("/") else _PATH
    url = urlunsplit(SplitResult(_SCHEMES[parts.scheme], parts.netloc, path, parts.query, ""))
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise AddressError(
            "The server key has characters that an HTTP header cannot carry.", "Check the key."
        )
    address = ServerAddress(url, key)
    if key and not address.is_encrypted and not address.is_loopback:
        raise AddressError(
            "The key would be sent to {address} without encryption.",
            "Use wss://, or an SSH tunnel to a port of this machine.",
            address=address.name,
        )
    return address


def read_key(file: Path | None, environ: Mapping[str, str] = os.environ) -> str:
    """The key in the first line of a file that is not empty, or of the environment; "" if there is none."""
    if file is None:
        return environ.get(KEY_VARIABLE, "").strip()
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AddressError(
            "The key in {file} cannot be read: {error}.", "Check the file.", file=file, error=error
        ) from error
    key = next((line.strip() for line in lines if line.strip() and not line.startswith("#")), "")
    if not key:
        raise AddressError("{file} has no key.", "Write it on one line.", file=file)
    return key
