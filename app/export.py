"""Files made for the user: complete under their name, or not there at all.

In: bytes. Out: a file, put in place by its last step; an ExportError says what to do if it cannot be written
(disk full, no permission, no folder). Any thread, one file per object.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from engine_runtime.errors import ExportError


class ExportFile:
    """A file being written beside its final place. As a context manager it is kept unless an error leaves
    it."""

    def __init__(self, path: Path) -> None:
        """Start the file; ExportError if the folder cannot be written to."""
        self.path = path
        self._temporary: Path | None = None
        if path.is_dir():
            raise ExportError(f"{path} was not written: a folder has that name. Choose another name.")
        try:
            descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        except OSError as error:
            raise _in_words(path, error) from error
        self._temporary = Path(name)
        self._file: BinaryIO = os.fdopen(descriptor, "wb")

    def write(self, content: bytes) -> None:
        """Append."""
        try:
            self._file.write(content)
        except OSError as error:
            self.abort()
            raise _in_words(self.path, error) from error

    def keep(self, header: bytes = b"") -> None:
        """Put the file in place, its first bytes replaced by `header`. May be called twice."""
        if self._temporary is None:
            return
        try:
            self._file.flush()
            self._file.seek(0)
            self._file.write(header)
            self._file.close()
            mask = os.umask(0)
            os.umask(mask)
            self._temporary.chmod(0o666 & ~mask)  # a temporary file is private, the result is as any other
            self._temporary.replace(self.path)
        except OSError as error:
            self.abort()
            raise _in_words(self.path, error) from error
        self._temporary = None

    def abort(self) -> None:
        """Remove what was written so far."""
        with contextlib.suppress(OSError):
            self._file.close()
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)
            self._temporary = None

    def __enter__(self) -> ExportFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.keep()
        else:
            self.abort()


def _in_words(path: Path, error: OSError) -> ExportError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ExportError(
            f"{path} was not written: the disk is full. Free some space or choose another folder."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ExportError(f"{path} was not written: no permission. Choose a folder that you may write to.")
    if error.errno == errno.ENOENT:
        return ExportError(f"{path} was not written: there is no folder {path.parent}. Make it first.")
    return ExportError(f"{path} was not written: {error.strerror}. Choose another folder.")
