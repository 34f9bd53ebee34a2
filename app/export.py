"""Atomic output files: complete under their name, or absent.

In: bytes. Out: a file, renamed into place at the end. Raises ExportError with the remedy if it cannot be
written (disk full, no permission, no folder). A link is kept and its target replaced; a character device such
as /dev/null is written to; pipes, sockets and disks are rejected. Any thread, one file per object.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from engine_runtime.errors import ExportError

_PREFIX_CHARACTERS = 40
"""Characters of the name that the temporary file takes over, since names have a limited length."""


class ExportFile:
    """A temporary file in the target folder. As a context manager it is renamed into place, or removed after
    an error."""

    def __init__(self, path: Path, *, is_private: bool = False) -> None:
        """Start the file, which only its owner reads if it `is_private`; ExportError if the folder cannot be
        written to."""
        self.path = path
        self._is_private = is_private
        self._temporary: Path | None = None
        self._is_open = True
        try:
            self._target, self._mode = _find_target(path)
            if self._mode is not None and stat.S_ISCHR(self._mode):
                self._file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115
                return
            # The system applies the umask to a new file; to ask for it would change it for all threads.
            is_new = self._mode is None and not is_private
            name = f".{self._target.name[:_PREFIX_CHARACTERS]}.{secrets.token_hex(8)}.part"
            temporary = self._target.with_name(name)
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666 if is_new else 0o600)
        except OSError as error:
            raise in_words(path, error) from error
        self._temporary = temporary
        self._file = os.fdopen(descriptor, "w+b")

    def write(self, content: bytes) -> None:
        """Append."""
        try:
            self._file.write(content)
        except OSError as error:
            self.abort()
            raise in_words(self.path, error) from error

    def keep(self, header: bytes = b"") -> None:
        """Put the file in place, its first bytes replaced by `header`. May be called twice."""
        if not self._is_open:
            return
        try:
            self._file.flush()
            self._file.seek(0)
            self._file.write(header)
            if self._temporary is None:
                self._copy_to_device()
            else:
                self._file.close()
                if self._mode is not None and not self._is_private:
                    self._temporary.chmod(stat.S_IMODE(self._mode))
                self._temporary.replace(self._target)
        except OSError as error:
            self.abort()
            raise in_words(self.path, error) from error
        self._temporary = None
        self._is_open = False

    def abort(self) -> None:
        """Remove the incomplete file."""
        self._is_open = False
        with contextlib.suppress(OSError):
            self._file.close()
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)
            self._temporary = None

    def _copy_to_device(self) -> None:
        self._file.seek(0)
        with self._target.open("wb") as device:
            shutil.copyfileobj(self._file, device)
        self._file.close()

    def __enter__(self) -> ExportFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.keep()
        else:
            self.abort()


def check_target(path: Path) -> None:
    """Raise the ExportError that an `ExportFile` of this name would, before work is done for it."""
    ExportFile(path).abort()


def check_names(written: Mapping[str, Path | None], read: Mapping[str, Path | None]) -> None:
    """ExportError where two files to write are the same, or one is also read. Keys are the options."""
    names = list(written)
    for number, name in enumerate(names):
        others = {other: written[other] for other in names[:number]} | dict(read)
        for other, file in others.items():
            if _are_one_file(written[name], file):
                raise ExportError(
                    "{other} and {name} are the same file, {written}.",
                    "It would be overwritten: choose another name for one of them.",
                    other=other,
                    name=name,
                    written=written[name],
                )


def _are_one_file(first: Path | None, second: Path | None) -> bool:
    if first is None or second is None:
        return False
    try:
        return first.samefile(second) and not first.is_char_device()
    except OSError:  # one of them is not there yet
        return os.path.realpath(first) == os.path.realpath(second)


def _find_target(path: Path) -> tuple[Path, int | None]:
    """The path with links resolved, and the mode of the existing file (None if absent). Raises ExportError,
    OSError."""
    target = Path(os.path.realpath(path))
    try:
        found = target.stat()
    except FileNotFoundError:
        return target, None
    if stat.S_ISDIR(found.st_mode):
        raise ExportError(
            "{path} was not written: a folder has that name.", "Choose another name.", path=path
        )
    is_device = stat.S_ISCHR(found.st_mode)
    if not (is_device or stat.S_ISREG(found.st_mode)) or (is_device and _is_terminal(target)):
        raise ExportError(
            "{path} was not written: it is not a regular file.", "Choose another name.", path=path
        )
    if not is_device and _is_standard_output(found):
        raise ExportError(
            "{path} was not written: the command's own output goes there.", "Choose another name.", path=path
        )
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return target, found.st_mode


def _is_terminal(device: Path) -> bool:
    try:
        descriptor = os.open(device, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.isatty(descriptor)
    finally:
        os.close(descriptor)


def _is_standard_output(found: os.stat_result) -> bool:
    try:
        return os.path.samestat(found, os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError, AttributeError):  # closed, or not a file
        return False


def in_words(path: Path, error: OSError) -> ExportError:
    """Why `path` could not be written, and what to do about it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return ExportError(
            "{path} was not written: the disk is full.",
            "Free some space or choose another folder.",
            path=path,
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ExportError(
            "{path} was not written: no permission.", "Choose a folder that you may write to.", path=path
        )
    if error.errno == errno.ENOENT and not path.parent.is_dir():
        return ExportError(
            "{path} was not written: there is no folder {parent}.",
            "Create it first.",
            path=path,
            parent=path.parent,
        )
    if error.errno == errno.ENOENT:  # as in /proc
        return ExportError(
            "{path} was not written: {parent} cannot hold files.",
            "Choose another folder.",
            path=path,
            parent=path.parent,
        )
    if error.errno == errno.ENAMETOOLONG:
        return ExportError(
            "{path} was not written: its name is too long.", "Choose a shorter one.", path=path
        )
    return ExportError(
        "{path} was not written: {reason}.", "Choose another folder.", path=path, reason=error.strerror
    )
