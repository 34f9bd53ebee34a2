"""One window for the settings of a user: a lock that ends with its process, and a socket for later starts.

In: the folder of the settings, what a later start wants. Out: the right to use the settings, or the answer of
the window that has it. `window.lock` beside the settings is locked while a window uses them and names its
process, its host and its socket. The socket lies in a new private folder in the user's runtime folder, or in
the temporary one, so that no folder of another user is ever used. Any thread; needs Unix sockets that keep
messages apart (Linux); without them a later start can only refuse.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from app import paths
from app.process import take_lock
from engine_runtime.errors import MossVoiceError

MOST_BYTES = 4096
"""Longest message."""
_LOCK, _SOCKET = "window.lock", "window"
_FOLDER = "moss-voice-"
"""Beginning of the name of the socket's folder."""
ANSWER_S = 2.0
"""A window that does not answer for this long is hanging."""
_STARTING_S = 20.0
"""How long a process may hold the lock without a socket: it starts, or ends. A window that is younger loads
its libraries, which keeps it from answering in time on a busy machine."""
_POLL_S = 0.05
_TOKENS = ("XDG_ACTIVATION_TOKEN", "DESKTOP_STARTUP_ID")
_LONGEST_TOKEN = 1000
_BACKLOG = 16
_ADVICE = (
    "End that process (kill -9 {process}) and start again, or open a second window that "
    "saves nothing: moss-voice --new-instance"
)
_log = logging.getLogger(__name__)


class InstanceError(MossVoiceError):
    """Another process holds the settings and shows no window."""


@dataclass(frozen=True, slots=True)
class Knock:
    """A later start's request to the window."""

    raises: bool = True
    """Bring it to the front."""
    token: str = ""
    """Token by which the desktop recognizes that the user asked for it; "" for none."""

    @classmethod
    def of_environment(cls, *, raises: bool) -> Knock:
        """With the token that the launcher put into the environment."""
        token = next(filter(None, map(os.environ.get, _TOKENS)), "")
        return cls(raises, token if len(token) <= _LONGEST_TOKEN else "")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the window says of itself."""

    pid: int
    display: str = ""

    def sentence(self, knock: Knock, ignored: Sequence[str]) -> str:
        """The message to the user of a later start, whose options `ignored` have no effect."""
        there = os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY") or ""
        place = f" on the display {self.display}" if self.display not in ("", there) else ""
        what = "its window was brought to the front" if knock.raises else "its window stays as it is"
        rest = f" It was started before, so this has no effect: {shlex.join(ignored)}." if ignored else ""
        return (
            f"MOSS Voice is already running (process {self.pid}); {what}{place}.{rest} "
            "A second window that keeps nothing: moss-voice --new-instance"
        )


class Instance:
    """The right to use the settings: `claim` gives it, `close` or the end of the process gives it back."""

    def __init__(self, lock: int | None) -> None:
        """`lock` is the descriptor of the locked file, None where files cannot be locked."""
        self._lock = lock
        self._folder: Path | None = None
        self._listener: socket.socket | None = None
        if lock is not None:
            _remove_socket(_Holder.read(lock))
            self._write(_Holder(os.getpid(), socket.gethostname()))

    def listen(self) -> socket.socket | None:
        """The socket on which later starts knock, which does not block: the window can be shown from now on.
        None where there can be none."""
        if self._lock is None:
            return None
        try:
            self._folder = Path(tempfile.mkdtemp(prefix=_FOLDER, dir=_runtime_dir()))
            listener = _new_socket()
            with _short_name(self._folder) as name:
                listener.bind(name)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except OSError as error:
            _log.warning("later starts cannot reach this window: %s", error)
            return None
        self._listener = listener
        self._write(_Holder(os.getpid(), socket.gethostname(), str(self._folder / _SOCKET)))
        return listener

    def stop_listening(self) -> None:
        """The window closes: a later start waits until the settings are free."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._folder is not None and self._lock is not None:
            _remove_socket(_Holder.read(self._lock))
            self._folder = None

    def close(self) -> None:
        """Give the settings free."""
        self.stop_listening()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _write(self, holder: _Holder) -> None:
        if self._lock is not None:
            content = json.dumps(asdict(holder)).encode()
            try:
                os.ftruncate(self._lock, 0)
                os.pwrite(self._lock, content, 0)
            except OSError as error:
                _log.warning("later starts cannot find this window: %s", error)


@dataclass(frozen=True, slots=True)
class _Holder:
    """The content of the locked file."""

    pid: int = 0
    host: str = ""
    socket: str = ""
    """"" while the process has none, or none yet."""

    @classmethod
    def read(cls, lock: int) -> _Holder:
        """What the file says; nothing while it is being written."""
        try:
            holder = cls(**json.loads(os.pread(lock, MOST_BYTES, 0)))
        except (OSError, ValueError, TypeError, RecursionError):
            return cls()
        is_sound = isinstance(holder.pid, int) and all(
            isinstance(text, str) and "\0" not in text for text in (holder.host, holder.socket)
        )
        return holder if is_sound else cls()

    @property
    def name(self) -> str:
        """The process, for the user."""
        away = f" on {self.host}" if self.host not in ("", socket.gethostname()) else ""
        return f"process {self.pid}{away}" if self.pid else "another process"


def claim(folder: Path, knock: Knock, *, sleep: Callable[[float], None] = time.sleep) -> Instance | Answer:
    """The right to use the settings in `folder`, or the answer of the window that has it.

    Waits while the other process starts or ends. InstanceError if its window does not answer or does not
    come.
    """
    file = folder / _LOCK
    try:
        paths.make_private(folder)
        lock = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except OSError as error:
        # The settings cannot be saved there either, which the window reports.
        _log.warning("%s cannot be locked: %s", file, error)
        return Instance(None)
    waited_s = 0.0
    while True:
        is_free = take_lock(lock)
        # NOTE: knock in any case: on some network file systems every process gets the lock.
        holder = _Holder.read(lock)
        patience_s = max(ANSWER_S, os.fstat(lock).st_mtime + _STARTING_S - time.time())
        if holder.socket and (answer := _knock_at(holder, knock, min(patience_s, _STARTING_S))) is not None:
            os.close(lock)
            return answer
        if is_free:
            return Instance(lock)
        if waited_s >= _STARTING_S:
            os.close(lock)
            raise InstanceError(
                "MOSS Voice is already running ({holder}), but has no window that can be reached.",
                _ADVICE,
                holder=holder.name,
                process=holder.pid or "PID",
            )
        sleep(_POLL_S)
        waited_s += _POLL_S


def is_of_this_user(connection: socket.socket) -> bool:
    """Whether the process at the other end runs as this user."""
    form = "3i"
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(form))
    _, uid, _ = struct.unpack(form, found)
    return bool(uid == os.getuid())


def read_knock(message: bytes) -> Knock | None:
    """The knock of a message, None if it is none."""
    try:
        knock = Knock(**json.loads(message))
    except (ValueError, TypeError, RecursionError):
        return None
    is_sound = isinstance(knock.raises, bool) and isinstance(knock.token, str) and "\0" not in knock.token
    return knock if is_sound else None


def as_message(content: Knock | Answer) -> bytes:
    """What goes through the socket."""
    return json.dumps(asdict(content)).encode()


def _knock_at(holder: _Holder, knock: Knock, patience_s: float) -> Answer | None:
    """The answer of the window, None if nobody listens: it ends. InstanceError if it does not answer."""
    place = Path(holder.socket)
    with contextlib.suppress(OSError, ValueError), _new_socket() as connection:
        connection.settimeout(patience_s)
        try:
            with _short_name(place.parent) as name:
                connection.connect(name)
            if not is_of_this_user(connection):
                return None
            connection.send(as_message(knock))
            message = connection.recv(MOST_BYTES)
        except (TimeoutError, BlockingIOError) as error:  # the latter: too many knocks wait
            raise InstanceError(
                "MOSS Voice is already running ({holder}), but its window does not answer.",
                _ADVICE,
                holder=holder.name,
                process=holder.pid or "PID",
            ) from error
        with contextlib.suppress(TypeError, RecursionError):
            return Answer(**json.loads(message))
    return None


def _new_socket() -> socket.socket:
    """OSError where there are none of this kind."""
    if not hasattr(socket, "SO_PEERCRED"):
        raise OSError("this system has no sockets that name the user of the other end")
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@contextmanager
def _short_name(folder: Path) -> Iterator[str]:
    """A name for the socket in a folder, whose path may be longer than a socket allows. OSError if the folder
    is not this user's alone."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if not _is_private(os.fstat(descriptor)):
            raise PermissionError(f"{folder} is not private")
        yield f"/proc/self/fd/{descriptor}/{_SOCKET}"
    finally:
        os.close(descriptor)


def _runtime_dir() -> Path | None:
    """The user's runtime folder if it is theirs alone (not after `su`), None for the temporary one."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or "")
    with contextlib.suppress(OSError):
        if folder.is_absolute() and _is_private(folder.stat()):
            return folder
    return None


def _is_private(found: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _remove_socket(holder: _Holder) -> None:
    """Remove the socket of a process that has ended or ends, and its folder."""
    place = Path(holder.socket)
    if holder.socket and place.name == _SOCKET and place.parent.name.startswith(_FOLDER):
        with contextlib.suppress(OSError):
            place.unlink()
        with contextlib.suppress(OSError):
            place.parent.rmdir()
