"""`moss-voice doctor --newest`: compares this version with the newest one of a package index.

The only check that uses the network, and only made when it is asked for.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from packaging.version import InvalidVersion, Version

from app.commands.doctor_finding import Finding
from app.version import program_version
from engine_runtime.errors import redact

_NAME = "version"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--newest", action="store_true", help="also ask PyPI for the newest version (uses the network)"
    )
    parser.add_argument("--index-url", metavar="URL", help="with --newest: ask this index (PEP 503) instead")


def newest(index_url: str | None) -> Iterator[Finding]:
    """One finding."""
    from app.newest_version import newest_version
    from app.package_index import NETWORK_ERRORS, PYPI, PackageIndex, reason_of

    index, own = PackageIndex(index_url or PYPI), program_version()
    where = redact(index.url)
    try:
        found = newest_version(index)
    except (*NETWORK_ERRORS, ValueError) as error:
        detail = f"{own}; {where} cannot be asked: {reason_of(error)}"
        yield Finding("note", _NAME, detail, "Check the connection and the address.")
        return
    if found is None:
        advice = "Look where this copy came from, or name the index that has it: --newest --index-url URL."
        yield Finding("note", _NAME, f"{own}; {where} has no release of it", advice)
    elif _is_older(own, found):
        advice = "Install the newer one from where this one came."
        yield Finding("note", _NAME, f"{own}; the newest at {where} is {found}", advice)
    else:
        yield Finding("ok", _NAME, f"{own}, the newest at {where}")


def _is_older(own: str, found: Version) -> bool:
    """A version that is not installed, as in a folder, cannot be compared."""
    try:
        return Version(own) < found
    except InvalidVersion:
        return True
