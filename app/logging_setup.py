"""Logging, configured once by the composition root. Libraries only call `logging.getLogger(__name__)`.

Fatal errors go to stderr in one line, everything from INFO on to a rotating file that only its owner can
read. Audio, the text of conversations and passwords in URLs are never logged, by any library. Uncaught
exceptions of all threads and crashes of native code are logged to the file, too.
"""

from __future__ import annotations

import faulthandler
import logging
import logging.handlers
import os
import stat
import sys
import threading
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType

from app.paths import make_private
from engine_runtime.errors import redact

_FORMAT = "%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s"
_SCREEN_FORMAT = "%(levelname)s %(name)s: %(message)s"
MAX_BYTES = 1_000_000
_log = logging.getLogger(__name__)


def set_up_logging(file: Path | None, verbose: bool = False) -> None:
    """Send records to `file`, and critical ones (all if `verbose`) to stderr. Calling it again replaces that.

    If the log file cannot be written, this is reported once and the program continues. If the disk is full
    later, records are lost silently.
    """
    logging.raiseExceptions = False
    logging.setLogRecordFactory(_RedactedRecord)
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(logging.DEBUG if verbose else logging.INFO)
    console = logging.StreamHandler()
    console.setLevel(logging.DEBUG if verbose else logging.CRITICAL)
    console.setFormatter(_Redacted(_SCREEN_FORMAT) if verbose else _WithoutTraceback(_SCREEN_FORMAT))
    root.addHandler(console)
    if file is not None:
        _add_file(root, file)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread


class _RedactedRecord(logging.LogRecord):
    """A message without credentials, for the handlers of libraries, too."""

    def getMessage(self) -> str:
        """The message with its arguments."""
        return redact(super().getMessage())


class _Redacted(logging.Formatter):
    """Tracebacks without credentials, too."""

    def format(self, record: logging.LogRecord) -> str:
        """All of the record."""
        return redact(super().format(record))


class _WithoutTraceback(logging.Formatter):
    """One line on the screen; the log file has the rest."""

    def format(self, record: logging.LogRecord) -> str:
        """The message and the error's own words."""
        error = record.exc_info[1] if record.exc_info else None
        return redact(f"{record.getMessage()}{f': {error}' if error else ''} (details are in the log file)")


class _PrivateFile(logging.handlers.RotatingFileHandler):
    """Readable by its owner only, also a file of an earlier version."""

    def _open(self) -> TextIOWrapper:
        file = open(  # noqa: SIM115
            self.baseFilename, "a", encoding=self.encoding, errors=self.errors, opener=_open_private
        )
        faulthandler.enable(file)  # again after each rotation, which closes the earlier file
        return file


def _open_private(path: str, flags: int) -> int:
    descriptor = os.open(path, flags, 0o600)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.fchmod(descriptor, 0o600)
    return descriptor


def _add_file(root: logging.Logger, file: Path) -> None:
    try:
        make_private(file.parent)
        handler = _PrivateFile(file, maxBytes=MAX_BYTES, backupCount=3, encoding="utf-8", delay=False)
    except OSError as error:
        _log.warning("no log file at %s: %s", file, error)
        return
    handler.setFormatter(_Redacted(_FORMAT))
    root.addHandler(handler)


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    _log.critical("uncaught error", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(hook: threading.ExceptHookArgs) -> None:
    if hook.exc_value is None or issubclass(hook.exc_type, SystemExit):
        return
    name = hook.thread.name if hook.thread else "?"
    _log.critical("uncaught error in thread %s", name, exc_info=hook.exc_value)
