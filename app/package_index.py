"""Reads files over HTTP and the pages of a Python package index (PEP 503), when the user asks for it.

In: addresses. Out: answers and links; what they hold is not trusted. Proxies are those of HTTPS_PROXY,
certificates those of the system or of SSL_CERT_FILE. Blocks, in the thread of its caller.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import urllib.error
import urllib.request
from html.parser import HTMLParser
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.parse import unquote, urljoin, urlparse

from engine_runtime.errors import redact

PYPI = "https://pypi.org/simple"
NETWORK_ERRORS = (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError, ssl.SSLError)
"""What reading from the network raises."""

_TIMEOUT_S = 30
_LARGEST_PAGE = 10_000_000
_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora
    "/etc/ssl/ca-bundle.pem",  # openSUSE
)
"""For distributions other than the one on which the program was packaged, whose path its OpenSSL has."""


class PackageIndex:
    """An index such as PyPI or a mirror of it."""

    def __init__(self, url: str = PYPI) -> None:
        self.url = url.rstrip("/")

    def files(self, package: str) -> dict[str, str]:
        """The address of each file of a package, by name; empty for one that the index does not have.

        Raises NETWORK_ERRORS, and ValueError for an address that is none.
        """
        try:
            with open_url(f"{self.url}/{package}/") as answer:
                base, page = answer.geturl(), answer.read(_LARGEST_PAGE)
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                return {}
            raise
        links = _Links()
        links.feed(page.decode("utf-8", errors="replace"))
        addresses = (urljoin(base, link).partition("#")[0] for link in links.found)
        return {file_name(address): address for address in addresses}


def open_url(url: str, start: int = 0) -> Any:
    """The answer to a request for a file, from byte `start` on if the server can do that (status 206).

    Raises NETWORK_ERRORS, and ValueError for an address that is none.
    """
    headers = {"User-Agent": "moss-voice", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(url, headers=headers)
    return urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=_tls_context())


def file_name(url: str) -> str:
    """The name of the file at an address."""
    return unquote(urlparse(url).path).rpartition("/")[2]


def reason_of(error: BaseException) -> str:
    """One of NETWORK_ERRORS, as part of a sentence."""
    text = str(getattr(error, "reason", "") or error) or type(error).__name__
    return redact(text).rstrip(".")


class _Links(HTMLParser):
    """The targets of all links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


def _tls_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    if "SSL_CERT_FILE" not in os.environ and not context.get_ca_certs():
        for file in _CERTIFICATES:
            with contextlib.suppress(OSError):  # which ssl.SSLError is
                context.load_verify_locations(file)
                break
    return context
