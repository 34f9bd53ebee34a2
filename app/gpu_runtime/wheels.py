"""The wheels of the GPU runtime: downloaded, checked, unpacked into a folder, compared with their records.

In: locked wheels, a folder. Out: the files in it, each with the size and hash of the lock, and what they hold
(zip archives, PEP 427), without scripts and headers. The server is not trusted. Sequential, in the thread of
its caller.

pip and uv install from such a lock, too, but do less. Both (pip 26.3, uv 0.13) resume a download that breaks
off during a run and start over in the next one; here a .part file stays, which counts with gigabytes. Wheels
from a folder are hashed while they are copied into a private one, so that nobody changes them before they are
unpacked. Progress is in bytes of the total. And the packaged program has no installer: it would grow by 15 MB
(pip) or 38 MB (uv) for choosing versions that are fixed here.
"""

from __future__ import annotations

import base64
import csv
import errno
import hashlib
import os
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from app.gpu_runtime.lock import GpuRuntimeError, LockedWheel
from app.package_index import NETWORK_ERRORS, PackageIndex, open_url, reason_of
from engine_runtime.errors import redact

LEFT_OUT = ("torch/include/", "torch/share/")
"""For C++ extensions, three quarters of torch's files."""
_LIBRARIES = ("purelib", "platlib")
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
    """Bytes that still have to be downloaded to `to`."""
    return sum(wheel.size - _begun(to / wheel.file_name) for wheel in wheels)


def check(wheel: LockedWheel, file: Path) -> None:
    """GpuRuntimeError unless `file` is the locked wheel. Raises OSError."""
    with os.fdopen(_open(file, os.O_RDONLY), "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    _compare(digest, wheel, file)


def copy_checked(wheel: LockedWheel, source: Path, to: Path) -> None:
    """Copy a wheel out of a folder that others may write to, and check the copy: they could change the wheel
    between the check and its use. Raises GpuRuntimeError unless it is the locked one, OSError."""
    digest = hashlib.sha256()
    to.unlink(missing_ok=True)
    with os.fdopen(_open(source, os.O_RDONLY), "rb") as stream, to.open("xb") as copy:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            copy.write(chunk)
            if copy.tell() > wheel.size:
                break
    _compare(digest.hexdigest(), wheel, source)


def _compare(digest: str, wheel: LockedWheel, file: Path) -> None:
    if digest != wheel.sha256:
        raise GpuRuntimeError(
            "{file} does not match the lock file: its hash is wrong.", "Download it again.", file=file
        )


def _open(file: Path, flags: int) -> int:
    """A descriptor of a file itself, never of what a link of its name points to. Raises GpuRuntimeError for a
    link or a device, OSError."""
    try:
        number = os.open(file, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise GpuRuntimeError("{file} is a link.", "Put the file itself there.", file=file) from error
        raise
    found = os.fstat(number)
    if not stat.S_ISREG(found.st_mode) or (flags != os.O_RDONLY and found.st_nlink > 1):
        os.close(number)
        raise GpuRuntimeError(
            "{file} is a link or a device.", "Put the file itself there, or remove it.", file=file
        )
    return number


def _is_there(target: Path, wheel: LockedWheel) -> bool:
    """A file gets its name when its hash was right; installing checks it once more."""
    return _size(target) == wheel.size


def _part(target: Path) -> Path:
    return target.with_name(target.name + _PART)


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() and not file.is_symlink() else 0


def _begun(target: Path) -> int:
    return _size(target) or _size(_part(target))


def _fetch(
    wheel: LockedWheel, target: Path, index: PackageIndex | None, progress: Callable[[int], None]
) -> None:
    """Download one wheel, in several attempts as long as each makes progress."""
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
                "{file} cannot be downloaded: {reason}.",
                "Check the connection and start again: what was downloaded is kept.",
                file=wheel.file_name,
                reason=reason,
            )
    if _size(part) < wheel.size:
        raise GpuRuntimeError(
            "The download of {file} was interrupted {attempts} times: {reason}.",
            "Start again to continue.",
            file=wheel.file_name,
            attempts=_ATTEMPTS,
            reason=reason,
        )
    try:
        check(wheel, part)
    except GpuRuntimeError as error:
        part.unlink()
        raise GpuRuntimeError(
            "{file} arrived damaged: its hash differs from that of the lock file.",
            "It was removed. Start again; the other files are kept.",
            file=wheel.file_name,
        ) from error
    part.replace(target)


def _address(wheel: LockedWheel, index: PackageIndex | None) -> str:
    if index is None:
        return wheel.url
    address = index.files(wheel.package).get(wheel.file_name)
    if address is None:
        raise GpuRuntimeError(
            "The index {url} has no {file}.",
            "Use another one, or leave out --index-url.",
            url=redact(index.url),
            file=wheel.file_name,
        )
    return address


def _load(wheel: LockedWheel, part: Path, address: str, progress: Callable[[int], None]) -> None:
    """Append to `part` what is missing, never more than the size of the lock."""
    start = _size(part)
    with open_url(address, start) as answer:
        if start and answer.status != 206:  # a server that does not resume sends everything
            start = 0
        with os.fdopen(_open(part, os.O_WRONLY | os.O_CREAT), "wb") as file:
            file.truncate(start)
            file.seek(start)
            while start < wheel.size and (chunk := answer.read(min(_CHUNK, wheel.size - start))):
                file.write(chunk)
                start += len(chunk)
                progress(start)


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
        raise GpuRuntimeError(
            "{wheel} cannot be unpacked: {error}.", "Download it again.", wheel=wheel, error=error
        ) from error


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
    """Where a file of a wheel belongs; None if it is left out. GpuRuntimeError for a path outside the
    folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise GpuRuntimeError(
            "The wheel contains {name!r}, which lies outside its folder.", "Do not use it.", name=name
        )
    if name.endswith("/") or name.startswith(LEFT_OUT):
        return None
    if path.parts[0].endswith(".data"):
        if len(path.parts) < 3 or path.parts[1] not in _LIBRARIES:
            return None
        return PurePosixPath(*path.parts[2:])
    return path
