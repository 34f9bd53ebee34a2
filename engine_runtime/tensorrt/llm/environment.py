"""Checks the installed packages against the requirements of TensorRT-LLM.

In: the metadata of the installed packages; the requirements are read from the library's metadata if it is
installed, otherwise from requirements.txt. Out: every package with a wrong version, or missing. Nothing is
imported. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata, resources

from packaging.requirements import Requirement

_LIBRARY = "tensorrt-llm"


@dataclass(frozen=True, slots=True)
class Clash:
    """An installed package (`installed` is its version, None if it is missing) that does not meet its
    requirement."""

    package: str
    installed: str | None
    required: str


def requirements() -> list[Requirement]:
    """What TensorRT-LLM requires of this environment."""
    try:
        lines = metadata.requires(_LIBRARY) or []
    except metadata.PackageNotFoundError:
        text = resources.files("engine_runtime.tensorrt").joinpath("requirements.txt").read_text("utf-8")
        lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = [Requirement(line) for line in lines]
    return [wanted for wanted in found if wanted.marker is None or wanted.marker.evaluate({"extra": ""})]


def clashes() -> list[Clash]:
    """Every unmet requirement; a missing package counts only if the library is installed."""
    return list(_clashes(is_installed=installed_version(_LIBRARY) is not None))


def installed_version(package: str) -> str | None:
    """The version of an installed package, None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _clashes(is_installed: bool) -> Iterator[Clash]:
    for wanted in requirements():
        version = installed_version(wanted.name)
        if version is None:
            if is_installed:
                yield Clash(wanted.name, None, str(wanted.specifier) or "any version")
        elif not wanted.specifier.contains(version, prereleases=True):
            yield Clash(wanted.name, version, str(wanted.specifier))
