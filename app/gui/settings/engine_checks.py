"""What engine folders hold, and what other Pythons have, found out in processes of their own.

In: folders, interpreters. Out: the answers, kept for later. GUI thread; nothing here blocks.
"""

from __future__ import annotations

from typing import Any, Literal

from PySide6.QtCore import QObject, Signal

from app.gui.common.child_command import ChildCommand
from app.other_python import examination

Subject = tuple[Literal["engine", "python"], str]
"""A folder, or an interpreter, by its absolute path."""


class EngineChecks(QObject):
    """Attributes:
        answers: what `moss-voice trt inspect` or `app.other_python.examination` found, or a dict with
            the key "error": why it cannot be used, in the language of the window.

    Signals:
        found: there is another answer.
    """

    found = Signal()

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self.answers: dict[Subject, dict[str, Any]] = {}
        self._running: dict[Subject, ChildCommand] = {}

    def ask(self, subject: Subject) -> None:
        """Examine it, unless that is being done."""
        if subject in self._running:
            return
        kind, path = subject
        if kind == "engine":
            command = ChildCommand(self, "trt", "inspect", path, "--files", "--json")
        else:
            command = ChildCommand(self, program=examination(path))
        self._running[subject] = command
        lines: list[dict[str, Any]] = []
        command.line.connect(lines.append)
        command.ended.connect(lambda *error: self._end(subject, lines, " ".join(error).strip()))

    def close(self) -> None:
        """End what is running: the window closes."""
        for command in self._running.values():
            command.close()
        self._running.clear()

    def _end(self, subject: Subject, lines: list[dict[str, Any]], error: str) -> None:
        self._running.pop(subject, None)
        self.answers[subject] = {"error": error} if error or not lines else lines[-1]
        self.found.emit()
