"""Which version of the program a package index has, asked only when the user wants to know.

In: an index. Out: the newest release. Blocks, in the thread of its caller.
"""

from __future__ import annotations

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from app.package_index import PackageIndex

_PACKAGE = "moss-voice"


def newest_version(index: PackageIndex) -> Version | None:
    """The newest release there; None if there is none. Raises NETWORK_ERRORS, and ValueError for an address
    that is none.
    """
    found = [version for name in index.files(_PACKAGE) if (version := _version_of(name)) is not None]
    return max((version for version in found if not version.is_prerelease), default=None)


def _version_of(file: str) -> Version | None:
    try:
        return parse_wheel_filename(file)[1] if file.endswith(".whl") else parse_sdist_filename(file)[1]
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None
