"""Runs one `moss-voice` command, or another program, in a process of its own, and reads its lines of JSON.

In: the words of the command. Out: its lines, and the error with which it ended. GUI thread; only `kill`
waits.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QObject, QProcess, QProcessEnvironment, QTimer, Signal

from app.other_python import inherited_variables
from app.progress import PROBLEM_VARIABLE, problem_of
from engine_runtime.errors import Problem

PATIENCE_MS = 3_000
"""Time for the process to end by itself."""
_PREFIX = "moss-voice: "


class ChildCommand(QObject):
    """Begins at once. `program` is run in place of this one, without what is meant for this process.

    Signals:
        line: a line of JSON that is an object, as a dict.
        ended: the `Problem` with which the command failed, None if it succeeded.
    """

    line = Signal(dict)
    ended = Signal(object)

    def __init__(self, parent: QObject, *words: str, program: Sequence[str] = ()) -> None:
        super().__init__(parent)
        self._unread = b""
        self._problem: Problem | None = None
        self._has_ended = False
        self._process = process = QProcess(self)
        environment = QProcessEnvironment.systemEnvironment()
        for name in set(os.environ) - inherited_variables().keys() if program else ():
            environment.remove(name)
        environment.insert("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # stderr is for errors
        environment.insert(PROBLEM_VARIABLE, "1")
        process.setProcessEnvironment(environment)
        process.setWorkingDirectory(str(Path(__file__).parents[3]))
        process.readyReadStandardOutput.connect(self._read)
        process.finished.connect(self._end)
        process.errorOccurred.connect(self._end_unstarted)
        executable, *arguments = program or (sys.executable, "-m", "app", *words)
        process.start(executable, arguments)

    def terminate(self) -> None:
        """Ask the process to end, and end it if it does not."""
        self._process.terminate()
        QTimer.singleShot(PATIENCE_MS, self._process, self._process.kill)

    def kill(self) -> None:
        """Kill the process; no signal is emitted afterwards."""
        self._has_ended = True
        self._process.kill()
        self._process.waitForFinished(PATIENCE_MS)

    def _read(self) -> None:
        read = self._unread + bytes(self._process.readAllStandardOutput().data())
        *lines, self._unread = read.split(b"\n")
        for line in lines:
            if not line.startswith(b"{"):
                continue
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):  # of `program`, which may print anything
                continue
            if (problem := problem_of(found)) is not None:
                self._problem = problem
            else:
                self.line.emit(found)

    def _end_unstarted(self, error: QProcess.ProcessError) -> None:
        if error is QProcess.ProcessError.FailedToStart:
            self._end()

    def _end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        process = self._process
        self._read()
        errors = bytes(process.readAllStandardError().data()).decode(errors="replace").strip().splitlines()
        if process.error() is QProcess.ProcessError.UnknownError and process.exitCode() == 0:
            self.ended.emit(None)
        else:
            said = (errors or [process.errorString()])[-1].removeprefix(_PREFIX)
            self.ended.emit(self._problem or Problem("{said}", said=said))
        self.deleteLater()
