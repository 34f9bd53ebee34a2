"""The file of the preferences before Qt reads it: one that could abort the process is set aside.

In: its path. Out: the path to use. GUI thread.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

_LARGEST_FILE = 1_000_000
_INI_CHARACTER = re.compile(rb"\\(?:x([0-9a-fA-F]+)|([0-7]+))")
"""How QSettings writes a character as its number."""
_INI_SYNTAX = re.compile(rb'["\s\\]')
"""Characters within a value that are not part of it."""
_log = logging.getLogger(__name__)


def holds_objects(file: Path) -> bool:
    """Whether a file contains serialized Qt objects. The program writes none, and Qt aborts the process if
    they request more memory than available."""
    try:
        with file.open("rb") as stream:
            content = stream.read(_LARGEST_FILE + 1)
    except OSError:  # QSettings treats an unreadable file as empty
        return False
    plain = _INI_SYNTAX.sub(b"", _INI_CHARACTER.sub(_character, content))
    return len(content) > _LARGEST_FILE or b"@Variant(" in plain or b"@DateTime(" in plain


def set_aside(file: Path) -> Path:
    """Rename a file that Qt must not read; returns the one to use instead, which can neither be read nor
    written where that failed."""
    aside = file.with_name(f"{file.name}.damaged")
    _log.warning("%s is damaged; it is kept as %s", file, aside)
    try:
        file.replace(aside)
    except OSError:
        return Path(os.devnull) / file.name
    return file


def _character(escaped: re.Match[bytes]) -> bytes:
    hexadecimal, octal = escaped.groups()
    return bytes([(int(hexadecimal, 16) if hexadecimal else int(octal, 8)) & 0xFF])
