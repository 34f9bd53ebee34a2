"""Downloads the wheels of the GPU runtime.

In: locked wheels, a folder. Out: the files in it, each with the size and hash of the lock. An interrupted
file is resumed; the server is not trusted. Sequential, in the thread of its caller.

Wheels are files with known addresses and hashes, and zip archives: the standard library downloads and
unpacks them (wheel_archive.py). pip or uv inside the packaged program would add 20 to 60 MB, and choose
versions where nothing is to be chosen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from app.gpu_runtime.lock import GpuRuntimeError, LockedWheel
from app.package_index import NETWORK_ERRORS, PackageIndex, open_url, reason_of
from engine_runtime.errors import redact

_CHUNK = 1 << 20
_ATTEMPTS = 5
"""For one file."""
_PART = ".part"


def download(
    wheels: Iterable[LockedWheel], to: Path, index: PackageIndex | None, progress: Callable[[int], None]
) -> None:
    """Get every wheel that is not in `to` yet, from its locked address or from `index`.

    `progress` receives how many bytes are there. Raises GpuRuntimeError; what has arrived stays for the next
    time.
    """
    to.mkdir(parents=True, exist_ok=True)
    done = 0
    for wheel in wheels:
        target = to / wheel.file_name
        if not _is_there(target, wheel):
            _fetch(wheel, target, index, lambda loaded, before=done: progress(before + loaded))  # type: ignore[misc]
        done += wheel.size
        progress(done)


def missing_bytes(wheels: Iterable[LockedWheel], to: Path) -> int:
    """How much has still to be downloaded to `to`."""
    return sum(wheel.size - _begun(to / wheel.file_name) for wheel in wheels)


def check(wheel: LockedWheel, file: Path) -> None:
    """GpuRuntimeError unless `file` is the locked wheel. Raises OSError."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != wheel.sha256:
        raise GpuRuntimeError(f"{file} is not the file of the lock: its hash is wrong. Download it again.")


def _is_there(target: Path, wheel: LockedWheel) -> bool:
    """A file gets its name when its hash was right; installing checks it once more."""
    return target.is_file() and target.stat().st_size == wheel.size


def _part(target: Path) -> Path:
    return target.with_name(target.name + _PART)


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0


def _begun(target: Path) -> int:
    return _size(target) or _size(_part(target))


def _fetch(
    wheel: LockedWheel, target: Path, index: PackageIndex | None, progress: Callable[[int], None]
) -> None:
    """One wheel, in several attempts as long as each brings it forward."""
    part = _part(target)
    for _ in range(_ATTEMPTS):
        before = _size(part)
        if before >= wheel.size:
            break
        reason = "the server ended the answer early"
        try:
            _load(wheel, part, _address(wheel, index), progress)
        except (*NETWORK_ERRORS, ValueError) as error:
            reason = reason_of(error)
        if _size(part) <= before:
            raise GpuRuntimeError(
                f"{wheel.file_name} cannot be downloaded: {reason}. "
                "Check the connection and start again: what was downloaded is kept."
            )
    if _size(part) < wheel.size:
        raise GpuRuntimeError(
            f"{wheel.file_name} was interrupted {_ATTEMPTS} times: {reason}. Start again to continue."
        )
    try:
        check(wheel, part)
    except GpuRuntimeError as error:
        part.unlink()
        raise GpuRuntimeError(
            f"{wheel.file_name} arrived damaged: its hash is not that of the lock. "
            "It was removed; start again, the other files stay."
        ) from error
    part.replace(target)


def _address(wheel: LockedWheel, index: PackageIndex | None) -> str:
    if index is None:
        return wheel.url
    address = index.files(wheel.package).get(wheel.file_name)
    if address is None:
        raise GpuRuntimeError(
            f"The index {redact(index.url)} has no {wheel.file_name}. "
            "Use another one, or leave out --index-url."
        )
    return address


def _load(wheel: LockedWheel, part: Path, address: str, progress: Callable[[int], None]) -> None:
    """Append to `part` what is missing, never more than the size of the lock."""
    start = _size(part)
    with open_url(address, start) as answer:
        if start and answer.status != 206:  # a server that does not resume sends everything
            start = 0
        with part.open("ab" if start else "wb") as file:
            while start < wheel.size and (chunk := answer.read(min(_CHUNK, wheel.size - start))):
                file.write(chunk)
                start += len(chunk)
                progress(start)
