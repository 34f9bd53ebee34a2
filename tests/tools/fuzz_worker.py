"""A subprocess for fuzzed input, so that a hang, an abort or unbounded memory is a finding and does not end
the tests.

The parent sends (target, arguments, limits), the child answers with an `Outcome`. One child serves many
cases. Before each case it sets limits: CPU time (a timer whose signal also ends a loop in C) and additional
memory (RLIMIT_AS). The parent limits the wall time, for cases that block.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import pickle
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

ROOT = Path(__file__).resolve().parents[2]
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one case may take."""

    cpu_s: float = 2.0
    clock_s: float = 60.0
    """Much more than `cpu_s`: the machine may be busy."""
    memory: int = 256 << 20
    """Bytes beside those that the process has before the case."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a case ended."""

    kind: Literal["returned", "refused", "raised", "hung", "died"]
    """Refused: by a MossVoiceError; hung: too much processor time or time on the clock."""
    value: Any = None
    detail: str = ""
    """Message of the error, or the traceback."""
    cpu_s: float = 0.0


class Worker:
    """The parent's side. A child that died is replaced at the next case."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.cases = 0

    def run(self, target: str, *arguments: Any, limits: Limits | None = None) -> Outcome:
        """Call `module:function` with the arguments in the child."""
        limits = limits or Limits()
        self.cases += 1
        child = self._running()
        assert child.stdin is not None
        assert child.stdout is not None
        _send(child.stdin, (target, arguments, limits))
        if not select.select([child.stdout], [], [], limits.clock_s)[0]:
            self.close()
            return Outcome("hung", detail=f"no answer after {limits.clock_s:g} s")
        outcome = _receive(child.stdout)
        if isinstance(outcome, Outcome):
            return outcome
        status = child.wait()
        self.close()
        self._errors.seek(0)
        said = self._errors.read()[-2_000:].decode(errors="replace")
        kind: Literal["hung", "died"] = "hung" if -status == signal.SIGPROF else "died"
        return Outcome(kind, detail=f"the process ended with status {status}\n{said}")

    def resident(self) -> int:
        """Bytes that the child holds."""
        self.cases -= 1
        return int(self.run(f"{__name__}:resident", limits=Limits(cpu_s=60.0)).value)

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            self._errors.truncate(0)
            self._child = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import serve; serve()"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"},
            )
            atexit.register(self.close)
        return self._child


def _send(stream: IO[bytes], message: object) -> None:
    content = pickle.dumps(message)
    stream.write(_LENGTH.pack(len(content)) + content)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    """None at the end of the stream."""
    head = stream.read(_LENGTH.size)
    return pickle.loads(stream.read(_LENGTH.unpack(head)[0])) if len(head) == _LENGTH.size else None


def serve() -> None:
    """The child's side: answer until the parent closes the pipe."""
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        os.chdir(folder)
        while (question := _receive(questions)) is not None:
            _send(answers, _case(*question))


def resident() -> int:
    """Target: bytes that the child holds once all that nothing refers to is gone."""
    gc.collect()
    return _pages(1)


def _case(name: str, arguments: tuple[Any, ...], limits: Limits) -> Outcome:
    module, _, function = name.partition(":")
    try:
        target = getattr(importlib.import_module(module), function)
        getattr(target, "prepare", lambda: None)()  # imports and files that are no part of the case
    except Exception:
        return Outcome("raised", detail=f"before the case:\n{traceback.format_exc()}")
    began = time.process_time()
    # NOTE: a timer and no RLIMIT_CPU, whose count of all cases and `process_time` drift apart by seconds.
    _allow(1.5 * limits.cpu_s, _pages(0) + limits.memory)
    kind: Literal["returned", "refused", "raised", "hung"] = "returned"
    value, detail = None, ""
    try:
        value = target(*arguments)
    except BaseException as error:
        _allow(0.0, None)
        kind, detail = ("refused", str(error)) if _is_ours(error) else ("raised", traceback.format_exc())
    _allow(0.0, None)
    took = time.process_time() - began
    if took > limits.cpu_s:
        kind, detail = "hung", f"took {took:.1f} s of processor time"
    return Outcome(kind, value, detail, took)


def _is_ours(error: BaseException) -> bool:
    from engine_runtime.errors import MossVoiceError

    return isinstance(error, MossVoiceError)


def _allow(cpu_s: float, memory: int | None) -> None:
    """Bound what comes next; 0 seconds and None bound nothing."""
    endless = resource.RLIM_INFINITY
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    resource.setrlimit(resource.RLIMIT_AS, (endless if memory is None else memory, endless))


def _pages(column: int) -> int:
    """Bytes: column 0 is the address space, 1 what is resident."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[column]) * resource.getpagesize()
