"""The process of a command: standard streams, signals, files that it alone uses, exit.

In: the environment of the process. Out: usable streams, `Stopped` raised in the main thread on a signal, and
an exit that does not wait for other threads. Main thread, but for `take_lock`.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RETRY_S = 0.02
"""Interval between two checks whether an import has ended."""
_IMPORT_S = 1.0
"""How long to wait for an import in progress."""
_CLEAN_UP_S = 2.0
"""Time to remove unfinished files before `Stopped` is considered lost and raised again."""
_LAST_S = 5.0
"""After this time the process is ended in any case."""
_log = logging.getLogger(__name__)


class Stopped(KeyboardInterrupt):
    """A signal requests the end of the process. A KeyboardInterrupt, so that the same cleanup runs."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


def open_standard_streams() -> None:
    """Reopen closed streams on the null device, and make the output accept any character. NOTE: otherwise the
    next opened file would get the descriptor of a closed stream, and the messages that libraries print there.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def end_without_traceback() -> None:
    """Let Ctrl-C end the process at once, while modules are loaded; see `stopped_by_signals` for later."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def caught_signals() -> tuple[signal.Signals, ...]:
    """The signals that end the process, without those that it was started to ignore, as by nohup."""
    return tuple(number for number in END_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN)


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Raise `Stopped` in the main thread, where this has to be called, once a signal asks for the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    end = _End()
    before = {number: signal.signal(number, end.on_signal) for number in caught_signals()}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, end.on_alarm)
    try:
        yield
    finally:
        if end.number is not None:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in before.items():
            signal.signal(number, handler)


class _End:
    """Raises `Stopped` at the first signal, again if that had no effect, and finally ends the process.

    NOTE: libraries that are written in C lose an exception, or abort, while they are loaded and in callbacks.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._began_s = 0.0

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """The first one counts: a terminal that closes sends SIGHUP twice."""
        if self.number is None:
            self.number, self._began_s = number, time.monotonic()
            self._raise(number, frame)

    def on_alarm(self, _: int, frame: FrameType | None) -> None:
        """Time has gone by since the last attempt."""
        if self.number is not None:
            self._raise(self.number, frame)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        elapsed_s = time.monotonic() - self._began_s
        if elapsed_s > _LAST_S:
            os._exit(128 + number)
        is_early = elapsed_s < _IMPORT_S and _is_importing(frame)
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S if is_early else _CLEAN_UP_S)
        if not is_early:
            raise Stopped(number)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def take_lock(descriptor: int) -> bool:
    """Lock an open file until it is closed or the process has ended in whatever way; False if it is locked
    already. True where files cannot be locked, as on Windows and some network file systems. Any thread."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        _log.info("a file cannot be locked: %s", error)
    return True


def discard_output() -> None:
    """Discard the rest of the output: its reader is gone, or its disk is full."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def exit_now(status: int, text: str = "") -> None:
    """Exit, with an optional line on stderr, without waiting for threads and libraries, which may be busy for
    seconds."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{text}\n" if text else "")
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
