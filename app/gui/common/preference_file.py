"""The files of the preferences: private, and set aside before Qt reads them if they are damaged; beside
them the key of the server, which is in no log and in no other file.

In: paths, the key, an address that was saved. Out: whether Qt can read the file; where a damaged one was
put; key and address, if they can be used. GUI thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from pathlib import Path

from app.paths import make_private
from app.server_address import AddressError, parse_address

_LARGEST_FILE = 1_000_000
_INI_CHARACTER = re.compile(rb"\\(?:x([0-9a-fA-F]+)|([0-7]+))")
"""How QSettings writes a character as its number."""
_INI_SYNTAX = re.compile(rb'["\s\\]')
"""Characters within a value that are not part of it."""
_SECTION = re.compile(rb"^\s*\[[^\]]+\]", re.MULTILINE)
_COMMENTS = re.compile(rb"^\s*[;#].*$", re.MULTILINE)
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Characters that no text file contains."""
_log = logging.getLogger(__name__)


def holds_objects(file: Path) -> bool:
    """Whether a file contains serialized Qt objects. The program writes none, and Qt aborts the process if
    they request more memory than available."""
    content = _content(file)
    plain = _INI_SYNTAX.sub(b"", _INI_CHARACTER.sub(_character, content))
    return len(content) > _LARGEST_FILE or b"@Variant(" in plain or b"@DateTime(" in plain


def is_damaged(file: Path) -> bool:
    """Whether a file that is not empty is no INI file at all, as after a disk failure. QSettings would read
    it as if it were empty, and replace it."""
    content = _content(file)
    if _CONTROL.search(content):
        return True
    try:
        content.decode()
    except UnicodeDecodeError:
        return True
    return bool(_COMMENTS.sub(b"", content).strip()) and not _SECTION.search(content)


def set_aside(file: Path) -> Path | None:
    """Rename a file that must not be read; returns its new name, None if that is not possible."""
    aside = file.with_name(f"{file.name}.damaged")
    _log.warning("%s is damaged; it is kept as %s", file, aside)
    try:
        file.replace(aside)
    except OSError as error:
        _log.warning("%s cannot be renamed: %s", file, error)
        return None
    with contextlib.suppress(OSError):
        aside.chmod(0o600)
    return aside


def make_private_file(file: Path) -> None:
    """Make the file, or its permissions, such that nobody else can read it; Qt keeps them when it writes. Qt
    reports a file that cannot be made."""
    with contextlib.suppress(OSError):
        make_private(file.parent)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(_LARGEST_FILE + 1)
    except OSError:  # QSettings treats an unreadable file as empty
        return b""


def _character(escaped: re.Match[bytes]) -> bytes:
    hexadecimal, octal = escaped.groups()
    return bytes([(int(hexadecimal, 16) if hexadecimal else int(octal, 8)) & 0xFF])


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
