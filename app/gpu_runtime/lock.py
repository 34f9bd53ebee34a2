"""The lock of the GPU runtime: which wheels it consists of, where they are, their sizes and hashes.

In: pylock.gpu.toml (PEP 751, written by packaging/gpu_lock.py) and the Python that runs. Out: a `Lock` with
one wheel for each package. Any thread.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from packaging.tags import Tag, sys_tags
from packaging.utils import parse_wheel_filename

from engine_runtime.errors import MossVoiceError

LOCK_FILE = Path(__file__).with_name("pylock.gpu.toml")


class GpuRuntimeError(MossVoiceError):
    """The GPU runtime cannot be installed, tested or removed."""


@dataclass(frozen=True, slots=True)
class LockedWheel:
    """One wheel. Sizes in bytes; `unpacked` is an upper bound."""

    package: str
    version: str
    url: str
    size: int
    sha256: str
    unpacked: int

    @property
    def file_name(self) -> str:
        """The name of the file."""
        return unquote(urlparse(self.url).path).rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Lock:
    """All wheels of a runtime."""

    wheels: tuple[LockedWheel, ...]

    @property
    def key(self) -> str:
        """Name of the folder: another lock, another Python or another ABI gives another one."""
        digest = hashlib.sha256("".join(sorted(wheel.sha256 for wheel in self.wheels)).encode())
        return f"torch-{self.version('torch')}-{sys.implementation.cache_tag}-{digest.hexdigest()[:12]}"

    @property
    def download_bytes(self) -> int:
        """Size of all wheels."""
        return sum(wheel.size for wheel in self.wheels)

    @property
    def unpacked_bytes(self) -> int:
        """Size of their files, at most."""
        return sum(wheel.unpacked for wheel in self.wheels)

    @property
    def cuda(self) -> tuple[int, int] | None:
        """The CUDA version that a driver must support; None for a lock without CUDA."""
        version = self.version("nvidia-cuda-runtime")
        if version is None:
            return None
        major, minor = version.split(".")[:2]
        return int(major), int(minor)

    def version(self, package: str) -> str | None:
        """The version of a package, None if it is not in the lock."""
        return next((wheel.version for wheel in self.wheels if wheel.package == package), None)


def read_lock(file: Path = LOCK_FILE) -> Lock:
    """The lock for this Python and this system. Raises GpuRuntimeError where it has no wheels for them."""
    tags = {tag: rank for rank, tag in enumerate(sys_tags())}
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    return Lock(tuple(_choose(package, tags) for package in content["packages"]))


def _choose(package: dict[str, Any], tags: dict[Tag, int]) -> LockedWheel:
    """The wheel that fits best, as pip chooses."""
    ranked = []
    for entry in package["wheels"]:
        wheel = LockedWheel(
            package["name"],
            package["version"],
            entry["url"],
            entry["size"],
            entry["hashes"]["sha256"],
            package["tool"]["moss-voice"]["unpacked"],
        )
        fitting = [tags[tag] for tag in parse_wheel_filename(wheel.file_name)[3] if tag in tags]
        if fitting:
            ranked.append((min(fitting), wheel))
    if not ranked:
        raise GpuRuntimeError(
            "There is no GPU runtime for {platform} with this Python: {name} has no wheel for it.",
            "The program runs on the processor.",
            platform=sysconfig.get_platform(),
            name=package["name"],
        )
    return min(ranked, key=lambda pair: pair[0])[1]
