"""An engine in another environment, such as one with TensorRT-LLM: `moss-voice serve` there, as a child.

In: the interpreter of that environment and the settings of the engine. Out: a `RemoteEngine` that talks to
the child over loopback, as to any Realtime server. The child gets a key of its own, so that no other user of
the machine can connect, and ends with this process, whose end of its standard input closes then. Engine
thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from app.other_python import inherited_variables, isolated
from app.remote.server_engine import ServerEngine
from app.server_address import ServerAddress, parse_address
from app.session.engine_slot import SlotPort
from app.settings import StartSettings, serve_options
from engine_runtime.errors import MossVoiceError

_LISTENING = re.compile(r"listening on (ws://\S+)")
_POLL_S = 0.05
END_S = 5.0
"""Time for the child to end after its standard input was closed, and its conversation with it."""
_GIVE_UP_S = 2.0
"""Time to wait after the connection was lost: on one machine that means that the child has ended."""
_SESSION_MINUTES = "1440"
SHOWN_BYTES = 8_192
KEPT_BYTES = 1 << 20
"""Output of the child that is kept; older output is dropped."""
LOAD_S = 1_800.0
"""Time for the child to load the engine: minutes for the released model, more to build codec engines."""
_OWN_WORDS = "moss-voice: "
"""An error of the program itself names its remedy."""
_UNEXPLAINED = (
    "Check that this version of the program is installed there, with the extra serve: `-m app doctor` "
    "examines it."
)
_log = logging.getLogger(__name__)


class EngineProcessError(MossVoiceError):
    """The child cannot be started, or has ended."""


def engine_process_source(settings: StartSettings) -> Callable[[], ProcessEngine]:
    """The environment of the settings as the engine of a session."""
    assert settings.engine_python is not None
    python, options = settings.engine_python, serve_options(settings)
    return lambda: ProcessEngine(EngineProcess(python, options))


class EngineProcess:
    """The child. It is listening when the constructor returns."""

    def __init__(self, python: Path, options: list[str]) -> None:
        """Raises EngineProcessError if it does not start."""
        self._python = python
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        append_only(self._output.fileno())
        key = secrets.token_hex(24)
        try:
            self._process = self._start(options, key)
            self.address = self._await_address(key)
        except BaseException:
            self.close()
            raise

    def _start(self, options: list[str], key: str) -> subprocess.Popen[bytes]:
        command = isolated(str(self._python), "-m", "app", "serve", "--port=0", "--conversations=1")
        command += ["--drain-seconds=0", f"--session-minutes={_SESSION_MINUTES}", "--exit-with-stdin"]
        _log.info("the engine runs in %s: %s", self._python, " ".join(options))
        try:
            return subprocess.Popen(
                [*command, *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._output,
                env=inherited_variables() | {"MOSS_VOICE_API_KEYS": key},
                start_new_session=True,  # Ctrl-C is for this process, which then ends the child
            )
        except OSError as error:
            raise EngineProcessError(
                "{python} cannot be started: {reason}.",
                "Give --engine-python the interpreter of an environment, such as ~/moss-trt/bin/python.",
                python=self._python,
                reason=error.strerror,
            ) from error

    def _await_address(self, key: str) -> ServerAddress:
        """Where it listens, once the engine is loaded, which may take minutes."""
        end_s = time.monotonic() + LOAD_S
        while True:
            self.trim()
            status = self._process.poll()
            if found := _LISTENING.search(self._said()):
                return parse_address(found[1], key)
            if status is not None:
                is_explained = self._lines()[-1].startswith(_OWN_WORDS)
                raise EngineProcessError(
                    "The engine in {python} did not start: {said}",
                    "" if is_explained else _UNEXPLAINED,
                    python=self._python,
                    said=self.last_line(),
                )
            if time.monotonic() > end_s:
                raise EngineProcessError(
                    "The engine in {python} was not ready after {minutes:.0f} minutes: {said}",
                    "Start `{python} -m app serve` in a terminal to see why.",
                    python=self._python,
                    minutes=LOAD_S / 60,
                    said=self.last_line(),
                )
            time.sleep(_POLL_S)

    def trim(self) -> None:
        """Drop old output of the child if there is much of it. Output that arrives meanwhile may be lost."""
        file = self._output.fileno()
        if os.fstat(file).st_size > KEPT_BYTES:
            said = self._said().encode()
            os.ftruncate(file, 0)
            os.write(file, said)

    @property
    def status(self) -> int | None:
        """The exit status, None while it runs."""
        return self._process.poll()

    def last_line(self) -> str:
        """The last line that it wrote: the reason if it has failed."""
        return self._lines()[-1].removeprefix(_OWN_WORDS).rstrip(".") + "."

    def _lines(self) -> list[str]:
        return self._said().strip().splitlines() or ["it wrote nothing"]

    def _said(self) -> str:
        """The end of what it wrote."""
        file = self._output.fileno()
        start = max(0, os.fstat(file).st_size - SHOWN_BYTES)
        return os.pread(file, SHOWN_BYTES, start).decode(errors="replace")  # the child's position stays

    def close(self) -> None:
        """End the child."""
        if (process := getattr(self, "_process", None)) is not None:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._output.close()


def append_only(file: int) -> None:
    """Make every write append, also after the file was truncated."""
    import fcntl  # not on Windows

    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)


class ProcessEngine:
    """A `RemoteEngine` that ends its child when the conversation is over."""

    def __init__(self, process: EngineProcess) -> None:
        self._process = process

    def converse(self, port: SlotPort, *, has_history: bool) -> None:
        """Raises EngineProcessError if the child has ended."""
        engine = ServerEngine(self._process.address, give_up_s=_GIVE_UP_S, after_jobs=self._process.trim)
        try:
            engine.converse(port, has_history=has_history)
        except MossVoiceError as error:
            if (status := self._process.status) is None:
                raise
            raise EngineProcessError(
                "The engine's process has ended with status {status}: {said}",
                "Restart the program; the log file has details.",
                status=status,
                said=self._process.last_line(),
            ) from error
        finally:
            self._process.close()
