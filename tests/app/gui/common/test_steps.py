"""Long work of the GUI thread, in steps between its events."""

from __future__ import annotations

from collections.abc import Generator

from PySide6.QtCore import QObject
from pytestqt.qtbot import QtBot

from app.gui.common.steps import Steps
from engine_runtime.errors import ExportError, MossVoiceError


def test_work_ends_is_given_up_or_fails(qtbot: QtBot) -> None:
    said: list[object] = []

    def work(name: str, error: MossVoiceError | None = None, steps: int = 3) -> Generator[None]:
        try:
            for step in range(steps):
                said.append((name, step))
                yield
            if error is not None:
                raise error
        finally:
            said.append((name, "closed"))

    parent = QObject()
    steps = Steps(parent)
    steps.run(work("a"), lambda: said.append("done"), said.append)
    assert said == [], "not before the next event"
    qtbot.waitUntil(lambda: not steps.is_running)
    assert said == [("a", 0), ("a", 1), ("a", 2), ("a", "closed"), "done"]
    said.clear()
    steps.run(work("b", steps=10**9), lambda: said.append("done"), said.append)
    qtbot.waitUntil(lambda: bool(said))
    error = ExportError("{path} was not written.", "Try again.", path="c")
    steps.run(work("c", error), lambda: said.append("done"), said.append)
    assert said[-1] == ("b", "closed")
    qtbot.waitUntil(lambda: not steps.is_running)
    assert said[-2:] == [("c", "closed"), error]
    assert "done" not in said
