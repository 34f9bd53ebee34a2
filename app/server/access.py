"""Who may connect: addresses to bind to, API keys, and web pages.

In: what the user configured, the headers of a request. Out: MossVoiceErrors for an unsafe configuration, a
refusal for a request. Any thread.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import os
import re
import shlex
import ssl
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from engine_runtime.errors import MossVoiceError

KEYS_VARIABLE = "MOSS_VOICE_API_KEYS"
SHORTEST_KEY = 16
_CLUSTER_MODE = "RAY_AUTH_MODE"
_SUBPROTOCOL_KEY = "openai-insecure-api-key."
"""How browsers, which cannot set headers, send a key."""
_log = logging.getLogger(__name__)


class AccessError(MossVoiceError):
    """A configuration that is unsafe or cannot be used."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who may connect. Without keys, anyone who can reach the address."""

    keys: tuple[str, ...] = field(default=(), repr=False)
    origins: tuple[str, ...] = ()
    """Web pages that may connect: scheme, host and port, as browsers send them."""
    is_local: bool = False
    """Whether only names of this machine are answered: a web page can have its own name lead here, and is
    then of the same origin."""

    def refusal(self, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """HTTP status and reason for a request with these headers (names in lower case); None if it may
        connect."""
        if (wrong := self.wrong_host(headers)) is not None:
            return wrong
        origin = headers.get("origin")
        if origin is not None and origin not in self.origins and not self._is_own_page(origin, headers):
            return 403, f"Web pages of {origin[:100]} may not connect. Allow them with --allow-origin."
        if self.keys and not self._is_known(_key_of(headers)):
            return 401, "The API key is missing or wrong. Send it as a bearer token."
        return None

    def at(self, host: str) -> Access:
        """For a server at this address: at loopback and without keys only names of this machine lead to
        it."""
        return replace(self, is_local=not self.keys and is_loopback(host))

    def wrong_host(self, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """HTTP status and reason for a request to another name than this machine's; None if that is no
        matter."""
        host = _host_of(headers)
        if not self.is_local or is_loopback(host):
            return None
        return 421, f"This server does not answer to the name {host[:100]}. Use localhost."

    def _is_own_page(self, origin: str, headers: Mapping[str, str]) -> bool:
        """Whether a request comes from the page of this server: its origin is the host that it asks. The
        scheme may differ, where a proxy terminates TLS. A page elsewhere whose name leads here looks the
        same: so the name has to be that of this machine, or the page has to know a key."""
        is_same = origin.partition("://")[2] == headers.get("host", "")
        return is_same and (bool(self.keys) or is_loopback(_host_of(headers)))

    def _is_known(self, key: str) -> bool:
        # All keys are compared, so that the time reveals nothing.
        given = key.encode()
        return sum(hmac.compare_digest(given, known.encode()) for known in self.keys) > 0


def _host_of(headers: Mapping[str, str]) -> str:
    return urlsplit(f"//{headers.get('host', '')}").hostname or ""


def _key_of(headers: Mapping[str, str]) -> str:
    if "api-key" in headers:  # of clients for Azure
        return headers["api-key"].strip()
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip()
    for protocol in headers.get("sec-websocket-protocol", "").split(","):
        if protocol.strip().startswith(_SUBPROTOCOL_KEY):
            return protocol.strip().removeprefix(_SUBPROTOCOL_KEY)
    return ""


def read_keys(file: Path | None, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The keys of a file, one per line, or of the environment, separated by commas or white space
    (`$(cat keys.txt)` has lines). AccessError for a file that cannot be read or a key that is easy to guess.
    """
    if file is None:
        keys = re.split(r"[,\s]+", environ.get(KEYS_VARIABLE, ""))
    else:
        try:
            keys = [line.strip() for line in file.read_text("utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise AccessError(
                "The keys in {file} cannot be read: {error}.", "Check the file.", file=file, error=error
            ) from error
    found = tuple(key for key in keys if key and not key.startswith("#"))
    if any(len(key) < SHORTEST_KEY or not key.isascii() or re.search(r"\s", key) for key in found):
        raise AccessError(
            "An API key is too short or has characters that an HTTP header cannot carry.",
            "Use {least} or more letters and digits, for example from `openssl rand -hex 24`.",
            least=SHORTEST_KEY,
        )
    if file is not None and not found:
        raise AccessError("{file} has no key.", "Write one per line.", file=file)
    return found


def warnings(host: str, certificate: Path | None, secrets: Iterable[Path | None]) -> Iterator[str]:
    """What an administrator should know of a configuration that is allowed; `secrets` are the files of API
    keys and of the certificate's private key."""
    if not is_loopback(host) and certificate is None:
        yield (
            f"Without TLS everybody on the way to {host} can hear the conversations and read the API key. "
            "Use --tls-cert and --tls-key, or a proxy that terminates TLS."
        )
    for file in secrets:
        if file is not None and stat.S_IMODE(file.stat().st_mode) & 0o077:
            name = shlex.quote(str(file))
            yield f"{file} can be read by other users of this machine. Run: chmod 600 {name}"


def check_address(host: str, access: Access) -> None:
    """AccessError where others could connect without a key."""
    if access.keys or is_loopback(host):
        return
    raise AccessError(
        "Others can reach the address {host}, but no API key is set.",
        "Set {variable} or --api-key-file, or bind to 127.0.0.1.",
        host=host,
        variable=KEYS_VARIABLE,
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_cluster(environ: Mapping[str, str] = os.environ) -> None:
    """AccessError in a Ray cluster that demands no token, unless that was chosen explicitly.

    `ray start` and KubeRay demand none by default. Whoever reaches a port of such a cluster runs code as its
    user, and reads the API keys.
    """
    mode = environ.get(_CLUSTER_MODE, "")
    if mode == "disabled":
        _log.warning("cluster_without_authentication", extra={"fields": {_CLUSTER_MODE: mode}})
    elif mode != "token":
        raise AccessError(
            "This Ray cluster runs code from anyone who can reach its ports.",
            "Set {variable}=token before `ray start` on each machine and here (packaging/SERVE.md), "
            "or {variable}=disabled where nobody else can reach it.",
            variable=_CLUSTER_MODE,
        )


def check_tls(certificate: Path | None, key: Path | None) -> None:
    """AccessError if the certificate cannot be used."""
    if (certificate is None) is not (key is None):
        raise AccessError("TLS needs both --tls-cert and --tls-key.", "Give both, or neither.")
    if certificate is None or key is None:
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise AccessError(
            "The certificate {certificate} cannot be used with the key {key}: {error}.",
            "Check both files.",
            certificate=certificate,
            key=key,
            error=error,
        ) from error
