"""The page at /: a client of the server in the browser, with its files and their security headers.

Out: the files of the folder `page`, which http_app.py serves. They need no key, since they tell nothing; what
they connect to does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app import paths

FOLDER = Path(__file__).parent / "page"
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_ICON = "icons/moss-voice.svg"
_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)
HEADERS = {
    "content-security-policy": "; ".join(_POLICY),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "permissions-policy": "microphone=(self), camera=(), geolocation=(), display-capture=()",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page."""

    content: bytes
    media_type: str


def page_files() -> dict[str, PageFile]:
    """The files by the path of their request."""
    files = {f"/{file.name}": file for file in FOLDER.iterdir() if file.suffix in _KINDS}
    files["/"] = files.pop("/index.html")
    files["/icon.svg"] = paths.assets_dir() / _ICON
    return {path: PageFile(file.read_bytes(), _KINDS[file.suffix]) for path, file in files.items()}
