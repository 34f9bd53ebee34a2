#!/usr/bin/env python3
"""Write app/gpu_runtime/pylock.gpu.toml: the wheels of the GPU runtime, with sizes and hashes.

    uvx --from uv python3 packaging/gpu_lock.py

In: the version of torch in packaging/bootstrap.py, the pins of packaging/constraints.txt and PyPI, asked
through uv. Out: one lock file (PEP 751) with the wheels of every supported Python on Linux x86-64. The
unpacked size of a wheel, which no index states, is read from its directory at the end of the file. To be run
again when torch or one of the pins changes; a test says so. Needs uv in PATH; otherwise standard library
only.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import bootstrap

LOCK = bootstrap.ROOT / "app" / "gpu_runtime" / "pylock.gpu.toml"
PLATFORM = "x86_64-manylinux_2_28"
REQUIREMENTS = (bootstrap.TORCH, "triton")
_HEADER = """\
# The GPU runtime of the packaged program: the CUDA build of torch and everything that it requires.
# Written by packaging/gpu_lock.py; a lock file as of PEP 751 for Linux on x86-64.
lock-version = "1.0"
created-by = "packaging/gpu_lock.py"
"""
_TIMEOUT_S = 60


class RangeFile(io.RawIOBase):
    """A file on a web server of which only the parts that are read are loaded."""

    def __init__(self, url: str, size: int) -> None:
        self._url, self._size, self._at = url, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; returns the new position."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Load as many bytes as `buffer` holds. Raises OSError."""
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        asked = urllib.request.Request(self._url, headers={"Range": f"bytes={self._at}-{end - 1}"})
        with urllib.request.urlopen(asked, timeout=_TIMEOUT_S) as answer:
            content = answer.read()
        if answer.status != 206 or len(content) != end - self._at:
            raise OSError(f"{self._url} cannot be read in parts")
        buffer[: len(content)] = content
        self._at = end
        return len(content)


def main() -> int:
    """Ask uv, read the sizes, write the lock."""
    try:
        packages = merge(resolve(f"{major}.{minor}") for major, minor in bootstrap.SUPPORTED)
        for wheel in (wheel for package in packages for wheel in package["wheels"]):
            wheel["unpacked"] = unpacked_size(wheel["url"], wheel["size"])
            print(f"{wheel['unpacked'] / 1e6:8.1f} MB  {wheel['url'].rpartition('/')[2]}", flush=True)
    except (OSError, ValueError, zipfile.BadZipFile, subprocess.CalledProcessError) as error:
        print(f"The lock was not written: {error}.", file=sys.stderr)
        return 1
    LOCK.write_text(lock_text(packages), encoding="utf-8")
    return 0


def resolve(python: str) -> list[dict[str, Any]]:
    """The packages that uv finds for a version of Python. Raises subprocess.CalledProcessError, OSError."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, found = Path(folder) / "requirements.in", Path(folder) / "pylock.toml"
        wanted.write_text("\n".join(REQUIREMENTS), encoding="utf-8")
        command = ["uv", "pip", "compile", str(wanted), "--constraint", str(bootstrap.CONSTRAINTS)]
        command += ["--python-version", python, "--python-platform", PLATFORM, "--only-binary", ":all:"]
        command += ["--format", "pylock.toml", "--output-file", str(found), "--quiet"]
        subprocess.run(command, check=True)
        packages: list[dict[str, Any]] = tomllib.loads(found.read_text(encoding="utf-8"))["packages"]
    return packages


def merge(resolved: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One list with the wheels of all. ValueError where the versions of a package differ."""
    merged: dict[str, dict[str, Any]] = {}
    for package in (package for packages in resolved for package in packages):
        known = merged.setdefault(package["name"], package | {"wheels": []})
        if known["version"] != package["version"]:
            raise ValueError(f"{package['name']} differs: {known['version']} and {package['version']}")
        known["wheels"] += [wheel for wheel in package["wheels"] if wheel not in known["wheels"]]
    return [merged[name] for name in sorted(merged)]


def unpacked_size(url: str, size: int) -> int:
    """Bytes of all files in a wheel. Raises OSError, zipfile.BadZipFile."""
    with zipfile.ZipFile(io.BufferedReader(RangeFile(url, size), buffer_size=1 << 20)) as archive:
        return sum(entry.file_size for entry in archive.infolist())


def lock_text(packages: Iterable[dict[str, Any]]) -> str:
    """The lock file. `unpacked` is this project's own, hence the table `tool` of the format."""
    lines = [_HEADER]
    for package in packages:
        lines.append(f'[[packages]]\nname = "{package["name"]}"\nversion = "{package["version"]}"')
        total = max(wheel["unpacked"] for wheel in package["wheels"])
        for wheel in package["wheels"]:
            lines.append("[[packages.wheels]]")
            lines.append(f'url = "{wheel["url"]}"')
            lines.append(f"size = {wheel['size']}")
            lines.append(f'hashes = {{ sha256 = "{wheel["hashes"]["sha256"]}" }}')
        lines.append(f"[packages.tool.moss-voice]\nunpacked = {total}\n")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
