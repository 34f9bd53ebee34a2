"""Downloads, checks and removes models, one at a time.

In: requests of the models page. Out: progress, the end of a job, errors. A job is `moss-voice fetch` or
`moss-voice inspect` in a process of its own; ending it pauses a download, which the next one resumes. GUI
thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from PySide6.QtCore import QObject, Signal

from app.gui.common.child_command import ChildCommand
from app.installed_models import Model
from engine_runtime.errors import Problem

JobKind = Literal["download", "verify", "remove"]


@dataclass(frozen=True, slots=True)
class Job:
    """What is being done with a model: `done` of `total`, in bytes while `step` is "download"."""

    kind: JobKind
    model: Model
    step: str = ""
    done: float = 0.0
    total: float = 0.0


class ModelJobs(QObject):
    """While there is a job, another one is refused; but a download may be removed.

    Attributes:
        job: what is being done, None if nothing is.

    Signals:
        changed: a job began, made progress or ended.
        finished: a job ended as it should; the job.
        failed: it did not; the job and the `Problem`.
    """

    changed = Signal()
    finished = Signal(object)
    failed = Signal(object, object)

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self.job: Job | None = None
        self._command: ChildCommand | None = None
        self._is_stopping = False
        self._is_cancelled = False

    def download_model(self, model: Model) -> None:
        """Download a model, or continue an earlier download of it."""
        self._start(Job("download", model), "fetch", model.folder.name, "--json")

    def verify_model(self, model: Model) -> None:
        """Compare all files of an installed model with their hashes."""
        self._start(Job("verify", model), "inspect", str(model.folder), "--progress")

    def remove_model(self, model: Model) -> None:
        """Delete the files of a model; if it is being downloaded, once the download has stopped."""
        if self.job is not None and self.job.model.folder == model.folder:
            self._is_cancelled = True
            self.stop_job()
        else:
            self._start(Job("remove", model), "fetch", model.folder.name, "--remove")

    def stop_job(self) -> None:
        """End the job; a download keeps what it has."""
        if self._command is not None:
            self._is_stopping = True
            self._command.terminate()

    def kill(self) -> None:
        """End the job at once: the window closes."""
        if self._command is not None:
            self._command.kill()
            self._command = self.job = None

    def _start(self, job: Job, *words: str) -> None:
        if self.job is not None:
            return
        self.job, self._is_stopping, self._is_cancelled = job, False, False
        self._command = ChildCommand(self, *words)
        self._command.line.connect(self._read)
        self._command.ended.connect(self._end)
        self.changed.emit()

    def _read(self, line: dict[str, Any]) -> None:
        if self.job is not None and "step" in line:
            self.job = replace(self.job, **line)
            self.changed.emit()

    def _end(self, problem: Problem | None) -> None:
        job, self.job, self._command = self.job, None, None
        if job is None:
            return
        if self._is_cancelled:
            self.remove_model(job.model)
            return
        self.changed.emit()
        if problem is None:
            self.finished.emit(job)
        elif not self._is_stopping:
            self.failed.emit(job, problem)
