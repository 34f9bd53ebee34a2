"""The version of the installed program."""

from __future__ import annotations

from importlib import metadata


def program_version() -> str:
    """Its version, or "(not installed)" where it runs from a folder."""
    try:
        return metadata.version("moss-voice")
    except metadata.PackageNotFoundError:
        return "(not installed)"
