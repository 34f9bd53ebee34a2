"""Runs one `moss-voice` command in a process of its own, here or in another environment, and reads its
result.

In: the words of the command. Out: exit status, the JSON document that it printed last, and the error that it
ended with. What it prints goes to two files. A process of its own gives GPU memory back, and a crash of a
driver or a library ends that process alone. Main thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.other_python import inherited_variables, isolated
from app.progress import LINES_VARIABLE, PROBLEM_VARIABLE, printed_problem, problem_of
from engine_runtime.errors import MossVoiceError, Problem

_POLL_S = 0.1
_PROGRESS_S = "2"
_END_S = 15.0
"""Time for the child to clean up after it was told to stop: it may be loading an engine."""
_LONGEST_LINE = 160
_OWN_WORDS = "moss-voice: "


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended. `document` is the last JSON object that it printed; `problem` why it failed, None
    if it did not."""

    words: tuple[str, ...]
    status: int
    document: dict[str, Any] | None
    problem: Problem | None
    seconds: float

    @property
    def error(self) -> str:
        """Why it failed, "" if it did not."""
        return "" if self.problem is None else str(self.problem)


Progress = Callable[[float, str], None]
"""Takes the seconds since the start, and the latest line that the command wrote."""


def run_command(
    words: Sequence[str], log: Path, progress: Progress | None = None, python: Path | None = None
) -> CommandResult:
    """Run `moss-voice *words`, in the environment of the interpreter `python` if given.

    `log` names two files: LOG.out for stdout, LOG.err for stderr. Ends the child if this process is
    interrupted. Raises MossVoiceError if it cannot be started.
    """
    start_s = time.monotonic()
    out, err = log.with_name(f"{log.name}.out"), log.with_name(f"{log.name}.err")
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = _start(words, python, stdout, stderr)
        try:
            while process.poll() is None:
                time.sleep(_POLL_S)
                if progress is not None:
                    progress(time.monotonic() - start_s, _latest_line(out, err))
        finally:
            _end(process)
    return result_of(words, process.returncode, _tail(out), _tail(err), time.monotonic() - start_s)


def result_of(words: Sequence[str], status: int, out: str, err: str, seconds: float) -> CommandResult:
    """The result of a command from what it printed."""
    problem = None if status == 0 else printed_problem(out)
    if status != 0 and problem is None:
        problem = Problem("{said}", said=_error_of(err, status))
    return CommandResult(tuple(words), status, _document_of(out), problem, round(seconds, 1))


def _start(words: Sequence[str], python: Path | None, stdout: Any, stderr: Any) -> subprocess.Popen[bytes]:
    environment = dict(os.environ) if python is None else inherited_variables()
    environment |= {LINES_VARIABLE: _PROGRESS_S, PROBLEM_VARIABLE: "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    command = [sys.executable, "-m", "app", *words]
    folder: Path | None = Path(__file__).parents[2]
    if python is not None:
        command, folder = isolated(str(python), "-m", "app", *words), None
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment, cwd=folder
        )
    except OSError as error:
        raise MossVoiceError(
            "{command} cannot be started: {reason}.",
            "Give --engine-python the interpreter of an environment, such as ~/moss-trt/bin/python.",
            command=command[0],
            reason=error.strerror,
        ) from error


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the child, if it still runs. After Ctrl-C in a terminal it has got the signal, too."""
    if process.poll() is not None:
        return
    with contextlib.suppress(OSError):
        process.send_signal(signal.SIGINT)
    try:
        process.wait(_END_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


def _document_of(out: str) -> dict[str, Any] | None:
    for line in reversed(out.splitlines()):
        if line.startswith("{"):
            try:
                found: dict[str, Any] = json.loads(line)
            except ValueError:
                continue
            if problem_of(found) is None or len(found) > 1:
                return found
    return None


def _error_of(err: str, status: int) -> str:
    """The program's own words, which name the remedy, else the last line."""
    lines = [line for line in err.splitlines() if line.strip()]
    own = [number for number, line in enumerate(lines) if line.startswith(_OWN_WORDS)]
    if own:
        return "\n".join(lines[own[-1] :]).removeprefix(_OWN_WORDS)
    how = f"signal {-status}" if status < 0 else f"status {status}"
    return f"It ended with {how}: {lines[-1].strip()}" if lines else f"It ended with {how} and wrote nothing."


def _latest_line(*files: Path) -> str:
    """The last line of the file that was written to last."""
    latest = max(files, key=lambda file: file.stat().st_mtime_ns)
    lines = [part.strip() for part in _tail(latest, 2_048).replace("\r", "\n").splitlines() if part.strip()]
    return lines[-1][:_LONGEST_LINE] if lines else ""


def _tail(file: Path, size: int | None = None) -> str:
    """The end of a file; all of it without `size`."""
    with file.open("rb") as content:
        if size is not None:
            content.seek(max(0, file.stat().st_size - size))
        return content.read().decode(errors="replace")
