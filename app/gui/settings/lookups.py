"""Examinations for the settings, in child processes: which models fit on the devices, what engine folders
contain, and what other Pythons have installed.

In: bundles, folders, interpreters. Out: the answers, kept for later. GUI thread; nothing here blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from PySide6.QtCore import QObject, Signal

from app.gui.common.child_command import ChildCommand
from app.gui.common.error_texts import in_words
from app.other_python import examination
from engine_runtime.errors import Problem
from engine_runtime.options import WeightFormat

Subject = tuple[Literal["engine", "python"], str]
"""A folder, or an interpreter, by its absolute path."""


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """A device, its memory in bytes, and what the model takes of it by weight format, and by whether tails,
    keys and values are compressed, too. The processor has one format."""

    name: str
    description: str
    total_bytes: int
    free_bytes: int
    needs: dict[tuple[WeightFormat, bool], int]

    @property
    def is_processor(self) -> bool:
        """Whether this is no GPU."""
        return self.name == "cpu"


class DevicePlans(QObject):
    """Attributes:
        rooms: the devices, by the bundle or the name of a released model that was asked about.

    Signals:
        found: the devices for a bundle are known, or cannot be found out; the bundle.
    """

    found = Signal(str)

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self.rooms: dict[str, list[DeviceRoom]] = {}
        self._running: dict[str, ChildCommand] = {}

    def look_up(self, bundle: str) -> None:
        """Find the plan of a bundle: a folder, or the name of a released model. Free memory is as of now."""
        if bundle in self._running:
            return
        command = self._running[bundle] = ChildCommand(self, "devices", bundle, "--json")
        command.line.connect(lambda line: self._keep(bundle, line))
        command.ended.connect(lambda _: self._end(bundle))

    def look_up_once(self, bundle: str) -> None:
        """The same, unless the plan is known already: for advice that need not be up to date."""
        if bundle not in self.rooms:
            self.look_up(bundle)

    def kill(self) -> None:
        """End what is running: the window closes."""
        for command in self._running.values():
            command.kill()
        self._running.clear()

    def _keep(self, bundle: str, line: dict[str, Any]) -> None:
        self.rooms[bundle] = [
            DeviceRoom(
                device["name"],
                device["description"],
                device["total_bytes"],
                device["free_bytes"],
                {(need["weights"], need["saves_memory"]): need["bytes"] for need in device["needs"]},
            )
            for device in line["devices"]
        ]

    def _end(self, bundle: str) -> None:
        self._running.pop(bundle, None)
        self.found.emit(bundle)


def fitting(room: DeviceRoom) -> tuple[WeightFormat, bool] | None:
    """The first format that fits into the free memory, from the most accurate to the smallest, or None."""
    order: tuple[tuple[WeightFormat, bool], ...] = (
        *(("native", False), ("fp8", False), ("int8", False)),
        *(("fp8", True), ("int8", True), ("int4", False), ("int4", True)),
    )
    return next(
        (form for form in order if room.needs.get(form, room.total_bytes + 1) <= room.free_bytes), None
    )


def best_gpu(rooms: Iterable[DeviceRoom]) -> tuple[DeviceRoom, tuple[WeightFormat, bool]] | None:
    """The GPU with the most free memory on which the model fits, and the format; None if there is none."""
    gpus = [(room, form) for room in rooms if not room.is_processor and (form := fitting(room)) is not None]
    return max(gpus, key=lambda found: found[0].free_bytes, default=None)


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

    def look_up(self, subject: Subject) -> None:
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
        command.ended.connect(lambda problem: self._end(subject, lines, problem))

    def kill(self) -> None:
        """End what is running: the window closes."""
        for command in self._running.values():
            command.kill()
        self._running.clear()

    def _end(self, subject: Subject, lines: list[dict[str, Any]], problem: Problem | None) -> None:
        self._running.pop(subject, None)
        if problem is not None or not lines:
            self.answers[subject] = {"error": "" if problem is None else in_words(problem)}
        else:
            self.answers[subject] = lines[-1]
        self.found.emit()
