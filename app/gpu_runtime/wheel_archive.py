"""Unpacks a wheel, as an installer does, without its scripts and headers; compares a folder with its records.

In: wheels (zip archives, PEP 427), a folder. Out: their files in it, with the permissions of the archive. Any
thread.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from app.gpu_runtime.lock import GpuRuntimeError

LEFT_OUT = ("torch/include/", "torch/share/")
"""For C++ extensions, three quarters of torch's files."""
_LIBRARIES = ("purelib", "platlib")
_CHUNK = 1 << 20


def unpack(wheel: Path, to: Path, progress: Callable[[int], None]) -> None:
    """Put the files of a wheel into `to`; `progress` receives the bytes that are done.

    Raises GpuRuntimeError for a file that is no wheel, OSError.
    """
    done = 0
    try:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                done += entry.file_size
                if (target := _target(entry.filename)) is None:
                    continue
                path = to / target
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as source, path.open("wb") as file:
                    shutil.copyfileobj(source, file, _CHUNK)
                if entry.external_attr >> 16 & 0o100:  # compilers and helpers that are started
                    path.chmod(0o755)
                progress(done)
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise GpuRuntimeError(f"{wheel} cannot be unpacked: {error}. Download it again.") from error


def is_intact(folder: Path) -> bool:
    """Whether all files have the sizes and hashes of the records that the wheels brought along."""
    records = sorted(folder.glob("*.dist-info/RECORD"))
    return bool(records) and all(_matches(folder, record) for record in records)


def _matches(folder: Path, record: Path) -> bool:
    try:
        with record.open(encoding="utf-8", newline="") as lines:
            for name, stated, _ in csv.reader(lines):
                target = _target(name)
                if target is None or not stated:  # left out, or the record itself
                    continue
                if _sha256(folder / target) != stated.removeprefix("sha256="):
                    return False
    except (OSError, ValueError, GpuRuntimeError):
        return False
    return True


def _sha256(file: Path) -> str:
    """A hash as records state it."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _target(name: str) -> PurePosixPath | None:
    """Where a file of a wheel belongs; None for what is left out. GpuRuntimeError for a path that leads
    out."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise GpuRuntimeError(f"The wheel has a file {name!r}, outside of its folder. Do not use it.")
    if name.endswith("/") or name.startswith(LEFT_OUT):
        return None
    if path.parts[0].endswith(".data"):
        if len(path.parts) < 3 or path.parts[1] not in _LIBRARIES:
            return None
        return PurePosixPath(*path.parts[2:])
    return path
