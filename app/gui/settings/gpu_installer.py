"""Runs `moss-voice gpu` in processes of its own, for the window.

In: wishes of the GPU page. Out: what the processes print (JSON lines), as attributes and a signal.
Installing goes on when the settings are closed, and is ended with the window; the next installation
continues it. GUI thread.
"""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QObject, Signal, SignalInstance

from app.gpu_runtime.status import refuse_elsewhere
from app.gui.common.child_command import ChildCommand
from engine_runtime import installation
from engine_runtime.errors import MossVoiceError


class GpuInstaller(QObject):
    """At most one process at a time.

    Signals:
        changed: one of the attributes has another value.

    Attributes:
        status: what `gpu status` has printed last, {} before.
        step, done, total: what an installation does; bytes, 0 of 0 where that is not known.
        error: the sentences with which a process has failed, in the language of the window; "" for none.
    """

    changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.status: dict[str, Any] = {}
        self.step, self.done, self.total = "", 0, 0
        self.error = ""
        self.part = ""
        self._is_cancelled = False
        self._command: ChildCommand | None = None

    @property
    def is_installing(self) -> bool:
        """Whether an installation or a removal runs."""
        return self._command is not None and self.part != "status"

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
        if self._command is not None:
            self._is_cancelled = True
            self._command.stop()

    def close(self) -> None:
        """End whatever runs, at once: an installation can be interrupted at any time."""
        if self._command is not None:
            self._command.close()
            self._command = None

    def _start(self, part: str, *options: str) -> None:
        if self._command is not None:
            return
        self.part, self.step, self.done, self.total = part, "", 0, 0
        self._is_cancelled = False
        self._command = ChildCommand(self, "gpu", part, *options)
        self._command.line.connect(self._take)
        self._command.ended.connect(self._finish)
        self.changed.emit()

    def _take(self, line: dict[str, Any]) -> None:
        if self.part == "status":
            self.status = line
        elif "step" in line:
            self.step, self.done, self.total = line["step"], line["done"], line["total"]
        self.changed.emit()

    def _finish(self, what_is_wrong: str, what_to_do: str) -> None:
        self._command = None
        if not self._is_cancelled:
            self.error = f"{what_is_wrong} {what_to_do}".strip() or self.error
        self.changed.emit()
        if self.part != "status":
            self.look()


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
