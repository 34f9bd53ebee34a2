"""Logging of the program, set up once by the composition root. Libraries only call
`logging.getLogger(__name__)`.

What ends the program goes to stderr in one line, everything from INFO on to a rotating file. Neither audio
nor what was said is ever logged. Uncaught errors of any thread and crashes of native code end up in the
file too.
"""

from __future__ import annotations

import faulthandler
import logging
import logging.handlers
import sys
import threading
from pathlib import Path
from types import TracebackType

_FORMAT = "%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s"
_SCREEN_FORMAT = "%(levelname)s %(name)s: %(message)s"
_MAX_BYTES = 1_000_000
_log = logging.getLogger(__name__)


def set_up_logging(file: Path | None, verbose: bool = False) -> None:
    """Send records to `file`, and to stderr what is critical, or everything if `verbose`. Calling it again
    replaces that.

    A log file that cannot be written is no reason to stop: it is reported once and left out.
    """
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(logging.DEBUG if verbose else logging.INFO)
    console = logging.StreamHandler()
    console.setLevel(logging.DEBUG if verbose else logging.CRITICAL)
    console.setFormatter(logging.Formatter(_SCREEN_FORMAT) if verbose else _WithoutTraceback(_SCREEN_FORMAT))
    root.addHandler(console)
    if file is not None:
        _add_file(root, file)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread


class _WithoutTraceback(logging.Formatter):
    """One line on the screen; the file has the rest."""

    def format(self, record: logging.LogRecord) -> str:
        """The message and the error's own words."""
        error = record.exc_info[1] if record.exc_info else None
        return f"{record.getMessage()}{f': {error}' if error else ''} (details are in the log file)"


def _add_file(root: logging.Logger, file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.handlers.RotatingFileHandler(
            file, maxBytes=_MAX_BYTES, backupCount=3, encoding="utf-8", delay=False
        )
    except OSError as error:
        _log.warning("no log file at %s: %s", file, error)
        return
    handler.setFormatter(logging.Formatter(_FORMAT))
    root.addHandler(handler)
    if handler.stream is not None:
        faulthandler.enable(handler.stream)


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
