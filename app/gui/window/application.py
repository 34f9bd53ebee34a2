"""Starts Qt on the display of the environment, or exits with the reason why it cannot.

In: DISPLAY, WAYLAND_DISPLAY, QT_QPA_PLATFORM. Out: the application. Main thread. Run as a module it only
checks that Qt starts.
"""

from __future__ import annotations

import logging
import sys

from PySide6.QtCore import QMessageLogContext, QtMsgType, qInstallMessageHandler
from PySide6.QtWidgets import QApplication

from app.process import exit_now
from app.progress import print_problem
from engine_runtime.errors import Problem

_log = logging.getLogger(__name__)
_HARMLESS = "Detected locale"
"""Qt's message about the locale C; it continues with UTF-8."""


def make_application() -> QApplication:
    """Qt aborts the process if it cannot use the display; report that and exit with status 1."""
    said: list[str] = []

    def listen(kind: QtMsgType, context: QMessageLogContext, message: str) -> None:
        line = " ".join(message.split())
        _log.info("Qt: %s", line)
        if not line.startswith(_HARMLESS):
            said.append(line)
        if kind is QtMsgType.QtFatalMsg:
            problem = Problem(
                "No window can be opened here ({reason}).",
                "Check DISPLAY and QT_QPA_PLATFORM, or work without a window: `moss-voice talk --in "
                "question.wav --out reply.wav` or `moss-voice demo`.",
                reason=said[0].rstrip("."),
            )
            print_problem(problem)
            exit_now(1, f"moss-voice: {problem}")

    before = qInstallMessageHandler(listen)
    try:
        return QApplication(sys.argv[:1])
    finally:
        qInstallMessageHandler(before)


if __name__ == "__main__":
    make_application()
