"""The page of the settings dialog about the engine: PyTorch or TensorRT-LLM, its folder, its environment.

In: preferences, the chosen bundle, what folders and interpreters hold. Out: the edited preferences; folder
and interpreter are examined before they can be applied. GUI thread.
"""

from __future__ import annotations

import dataclasses
import os
from importlib.util import find_spec
from typing import Any

from PySide6.QtCore import QTimer, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFileDialog

from app import paths
from app.gui.common.preferences import Preferences
from app.gui.settings.lookups import EngineChecks, Subject
from app.gui.settings.settings_page import (
    FileField,
    SettingsPage,
    choice_box,
    choose,
    missing_client,
    size_in_words,
)
from app.version import VERSION

PAUSE_MS = 400
"""Delay after a key press, since each examination starts a process."""
_PLAN, _CONFIG = "rank0.engine", "config.json"


class EnginePage(SettingsPage):
    """Without `checks` nothing is examined.

    Signals:
        checked: the page was changed and checked; see `is_usable`.
    """

    checked = Signal()

    def __init__(self, checks: EngineChecks | None = None) -> None:
        self._checks = checks
        self._bundle_name = ""
        self._was_seen = False
        self._asked: set[Subject] = set()
        self.backend_box = choice_box((("PyTorch", "torch"), ("TensorRT-LLM", "trtllm")))
        self.engine = FileField(
            self.tr("Folder of the TensorRT-LLM engine"),
            self.tr('Created by "moss-voice trt build"'),
            self._browse_engines,
        )
        self.python = FileField(
            self.tr("Python that runs the engine"),
            self.tr("The Python of this program"),
            self._browse_pythons,
        )
        super().__init__(
            (
                self.tr("&Language model"),
                self.backend_box,
                self.tr(
                    "TensorRT-LLM runs an engine that was built from the model for the GPU of this "
                    "computer. The engine fixes the formats of weights, keys and values."
                ),
            ),
            (self.tr("&Engine folder"), self.engine, ""),
            (
                self.tr("&Python"),
                self.python,
                self.tr(
                    "Runs model and codec in a separate process with this interpreter, such as "
                    "~/moss-trt/bin/python with TensorRT-LLM."
                ),
            ),
        )
        self._pause = QTimer(self)
        self._pause.setSingleShot(True)
        self._pause.setInterval(PAUSE_MS)
        self._pause.timeout.connect(self._ask)
        self.backend_box.currentIndexChanged.connect(self._follow_edits)
        self.engine.changed.connect(self._follow_edits)
        self.python.changed.connect(self._follow_edits)
        if checks is not None:
            checks.found.connect(self._check)

    @property
    def is_usable(self) -> bool:
        """Whether the engine would load, as far as that is known. A page that nobody has seen was not
        edited."""
        return not self._was_seen or (self.engine.is_usable and self.python.is_usable)

    @property
    def uses_engine(self) -> bool:
        """Whether a TensorRT-LLM engine is chosen that was built from the chosen model."""
        return self._is_chosen and not self._is_of_another_bundle

    def show_preferences(self, preferences: Preferences) -> None:
        """Fill the page."""
        choose(self.backend_box, preferences.backend)
        self.engine.path, self.python.path = preferences.engine, preferences.engine_python
        self._follow_edits()

    def edited(self, preferences: Preferences) -> Preferences:
        """`preferences` with the values of the page; PyTorch for a model that the engine was not built
        from."""
        return dataclasses.replace(
            preferences,
            backend="trtllm" if self.uses_engine else "torch",
            engine=self.engine.path,
            engine_python=self.python.path,
        )

    def follow_bundle(self, name: str) -> None:
        """The name of the chosen model, "" if it is not known."""
        if name != self._bundle_name:
            self._bundle_name = name
            self._check()

    def showEvent(self, event: QShowEvent) -> None:
        """Examine what is chosen as it is now."""
        super().showEvent(event)
        self._was_seen = True
        self._asked.clear()
        self._follow_edits()

    @property
    def _is_chosen(self) -> bool:
        return bool(self.backend_box.currentData() == "trtllm" and self.engine.path)

    @property
    def _is_of_another_bundle(self) -> bool:
        made_of = self._answer(self._engine_subject).get("bundle")
        return bool(made_of and self._bundle_name and made_of != self._bundle_name)

    @property
    def _engine_subject(self) -> Subject:
        return "engine", str(paths.user_path(self.engine.path).absolute())

    @property
    def _python_subject(self) -> Subject:
        # Not resolved: the interpreter of an environment is a link to that of the system.
        return "python", str(paths.user_path(self.python.path).absolute())

    def _answer(self, subject: Subject) -> dict[str, Any]:
        return {} if self._checks is None else self._checks.answers.get(subject, {})

    def _browse_engines(self, start: str) -> str:
        return QFileDialog.getExistingDirectory(self, self.tr("Folder of the TensorRT-LLM engine"), start)

    def _browse_pythons(self, start: str) -> str:
        return QFileDialog.getOpenFileName(self, self.tr("Python that runs the engine"), start)[0]

    def _follow_edits(self) -> None:
        self._check()
        self._pause.start()

    def _ask(self) -> None:
        """Examine what can be examined and was not, since the page was opened."""
        if self._checks is None:
            return
        for subject in self._subjects():
            if subject not in self._asked:
                self._asked.add(subject)
                self._checks.look_up(subject)

    def _subjects(self) -> list[Subject]:
        found: list[Subject] = []
        if self._is_chosen and _holds_engine(self._engine_subject[1]):
            found.append(self._engine_subject)
        if self.python.path and self._was_seen and _can_be_started(self._python_subject[1]):
            found.append(self._python_subject)
        return found

    def _check(self) -> None:
        """Show what the fields name, or what is wrong with it."""
        is_on = self.backend_box.currentData() == "trtllm"
        self.engine.setEnabled(is_on)
        looking = self.tr("Checking …")
        text, is_usable = self._about_engine(looking) if is_on else ("", True)
        self.engine.show_note(text, is_usable=is_usable, is_known=text != looking)
        text, is_usable = self._about_python(looking, is_on=is_on)
        self.python.show_note(text, is_usable=is_usable, is_known=text != looking)
        self.checked.emit()

    def _about_engine(self, looking: str) -> tuple[str, bool]:
        if not self.engine.path:
            return self.tr("Choose the folder of an engine."), False
        subject = self._engine_subject
        if not _holds_engine(subject[1]):
            text = self.tr("This folder contains no engine: %1 or %2 is missing.")
            return text.replace("%1", _PLAN).replace("%2", _CONFIG), False
        if self._checks is None:
            return "", True
        if not (answer := self._answer(subject)):
            return looking, False
        if "error" in answer:
            return answer["error"] or self.tr("The engine could not be checked."), False
        about = self._description(answer)
        if self._is_of_another_bundle:
            text = self.tr("%1 is selected on the Model page, and PyTorch runs it.")
            about = f"{about} {text.replace('%1', self._bundle_name)}"
        return about, True

    def _description(self, answer: dict[str, Any]) -> str:
        text = self.tr("Built from %1 with TensorRT-LLM %2: %3. %4, up to %5 positions per conversation.")
        values = (
            answer["bundle"] or self.tr("an unknown model"),
            answer["library"],
            answer["precision"],
            size_in_words(answer["bytes"]),
            str(answer["rows_of_a_conversation"]),
        )
        for index, value in enumerate(values, start=1):
            text = text.replace(f"%{index}", value)
        return text

    def _about_python(self, looking: str, *, is_on: bool) -> tuple[str, bool]:
        if text := missing_client():
            self.python.setEnabled(bool(self.python.path))  # one that is there can be removed
            return text, not self.python.path
        if not self.python.path:
            if is_on and find_spec("tensorrt_llm") is None:
                text = self.tr(
                    "This program has no TensorRT-LLM. Choose the Python of an environment that has it."
                )
                return text, False
            return "", True
        subject = self._python_subject
        if not _can_be_started(subject[1]):
            return self.tr("This file does not exist or cannot be executed."), False
        if self._checks is None:
            return "", True
        if not (answer := self._answer(subject)):
            return looking, False
        return self._about_environment(answer, is_on=is_on)

    def _about_environment(self, answer: dict[str, Any], *, is_on: bool) -> tuple[str, bool]:
        if "python" not in answer:
            return self.tr("This Python cannot be used. %1").replace("%1", answer["error"]).strip(), False
        if answer["moss-voice"] is None:
            return self.tr("MOSS Voice is not installed in that environment."), False
        if answer["missing"]:
            text = self.tr("This Python lacks packages: %1.")
            return text.replace("%1", ", ".join(answer["missing"])), False
        if is_on and answer["tensorrt-llm"] is None:
            return self.tr("TensorRT-LLM is not installed in that environment."), False
        parts = [f"Python {answer['python']}", f"MOSS Voice {answer['moss-voice']}"]
        if answer["tensorrt-llm"] is not None:
            parts.append(f"TensorRT-LLM {answer['tensorrt-llm']}")
        text = ", ".join(parts)
        if answer["moss-voice"] != VERSION:
            other = self.tr("This program has version %1. Install the same version in that environment.")
            text = f"{text}. {other.replace('%1', VERSION)}"
        return text, True


def _holds_engine(folder: str) -> bool:
    # NOTE: os.path treats a name that is too long or contains NUL as absent; pathlib raises.
    return all(os.path.isfile(os.path.join(folder, name)) for name in (_PLAN, _CONFIG))  # noqa: PTH113, PTH118


def _can_be_started(file: str) -> bool:
    return os.path.isfile(file) and os.access(file, os.X_OK)  # noqa: PTH113
