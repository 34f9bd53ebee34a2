"""Runs `moss-voice gpu` in processes of its own, for the window.

In: wishes of the GPU page. Out: what the processes print (JSON lines), as attributes and a signal.
Installing goes on when the settings are closed, and is ended with the window; the next installation
continues it. GUI thread.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from PySide6.QtCore import QObject, QProcess, QTimer, Signal, SignalInstance

from app import installation
from app.gpu_runtime.status import refuse_elsewhere
from engine_runtime.errors import MossVoiceError

_PATIENCE_MS = 5_000
"""After which a process that was asked to end is ended."""


class GpuInstaller(QObject):
    """At most one process at a time.

    Signals:
        changed: one of the attributes has another value.

    Attributes:
        status: what `gpu status` has printed last, {} before.
        step, done, total: what an installation does; bytes, 0 of 0 where that is not known.
        error: the sentences with which a process has failed, "" for none.
    """

    changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.status: dict[str, Any] = {}
        self.step, self.done, self.total = "", 0, 0
        self.error = ""
        self.part = ""
        self._is_cancelled = False
        self._process: QProcess | None = None
        self._patience = QTimer(self)
        self._patience.setSingleShot(True)
        self._patience.timeout.connect(self._kill)

    @property
    def is_installing(self) -> bool:
        """Whether an installation or a removal runs."""
        return self._process is not None and self.part != "status"

    def look(self) -> None:
        """Ask for the status."""
        self._start("status", "--json")

    def install(self) -> None:
        """Install, repair or update."""
        self.error = ""
        self._start("install", "--json")

    def remove(self) -> None:
        """Remove everything."""
        self.error = ""
        self._start("remove")

    def cancel(self) -> None:
        """End the installation; what has been downloaded stays."""
        if self._process is not None:
            self._is_cancelled = True
            self._process.terminate()
            self._patience.start(_PATIENCE_MS)

    def close(self) -> None:
        """End whatever runs, at once: an installation can be interrupted at any time."""
        if self._process is not None:
            self._process.blockSignals(True)
            self._process.kill()
            self._process.waitForFinished(1000)
            self._process = None

    def _start(self, part: str, *options: str) -> None:
        if self._process is not None:
            return
        self.part, self.step, self.done, self.total = part, "", 0, 0
        self._is_cancelled = False
        process = self._process = QProcess(self)
        process.readyReadStandardOutput.connect(self._read)
        process.finished.connect(self._finish)
        process.errorOccurred.connect(self._fail)
        process.start(sys.executable, ["-m", "app", "gpu", part, *options])
        self.changed.emit()

    def _read(self) -> None:
        while self._process is not None and self._process.canReadLine():
            self._take(json.loads(bytes(self._process.readLine().data())))
        self.changed.emit()

    def _take(self, line: dict[str, Any]) -> None:
        if self.part == "status":
            self.status = line
        elif "step" in line:
            self.step, self.done, self.total = line["step"], line["done"], line["total"]

    def _finish(self, status: int) -> None:
        process, self._process = self._process, None
        self._patience.stop()
        if process is None:
            return
        if status != 0 and not self._is_cancelled:
            words = bytes(process.readAllStandardError().data()).decode(errors="replace").strip().splitlines()
            self.error = words[-1].removeprefix("moss-voice: ") if words else ""
        process.deleteLater()
        self.changed.emit()
        if self.part != "status":
            self.look()

    def _fail(self, error: QProcess.ProcessError) -> None:
        if error == QProcess.ProcessError.FailedToStart and self._process is not None:
            self.error = self._process.errorString()
            self._process.deleteLater()
            self._process = None
            self.changed.emit()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()


def make_installer(parent: QObject, closed: SignalInstance) -> GpuInstaller | None:
    """One for the packaged program that can have a GPU runtime, otherwise None. `closed` ends it."""
    if not installation.is_frozen():
        return None
    try:
        refuse_elsewhere()
    except MossVoiceError:
        return None
    installer = GpuInstaller(parent)
    closed.connect(installer.close)
    return installer
