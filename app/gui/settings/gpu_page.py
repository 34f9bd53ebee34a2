"""The page of the settings about the GPU runtime: what is installed, installing with progress, removal.

`moss-voice gpu` does it in processes of its own, whose lines of JSON are the installer's attributes.
Installing goes on when the settings are closed, and is ended with the window; the next installation
continues it. Changes no preferences. GUI thread.
"""

from __future__ import annotations

import sys
from typing import Any

from PySide6.QtCore import QObject, Signal, SignalInstance
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QProgressBar, QPushButton, QWidget

from app.gpu_runtime.status import refuse_elsewhere
from app.gui.common.child_command import ChildCommand
from app.gui.common.error_texts import in_words
from app.gui.common.plain_text import PlainLabel
from app.gui.common.question import is_confirmed
from app.gui.settings.settings_page import SettingsPage
from engine_runtime import installation
from engine_runtime.errors import MossVoiceError, Problem

_PER_MILLE = 1000
"""Steps of the progress bar, whose range cannot hold gigabytes."""


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

    def query_status(self) -> None:
        """Ask for the status."""
        self._start("status", "--json")

    def install(self) -> None:
        """Install, repair or update."""
        self.error = ""
        self._start("install", "--json")

    def uninstall(self) -> None:
        """Remove everything."""
        self.error = ""
        self._start("remove")

    def cancel_installation(self) -> None:
        """End the installation; what has been downloaded stays."""
        if self._command is not None:
            self._is_cancelled = True
            self._command.terminate()

    def kill(self) -> None:
        """Kill whatever runs: an installation can be interrupted at any time."""
        if self._command is not None:
            self._command.kill()
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

    def _finish(self, problem: Problem | None) -> None:
        self._command = None
        if problem is not None and not self._is_cancelled:
            self.error = in_words(problem)
        self.changed.emit()
        if self.part != "status":
            self.query_status()


def make_installer(parent: QObject, closed: SignalInstance) -> GpuInstaller | None:
    """One for the packaged program that can have a GPU runtime, otherwise None. `closed` ends it."""
    if not installation.is_frozen():
        return None
    try:
        refuse_elsewhere()
    except MossVoiceError:
        return None
    installer = GpuInstaller(parent)
    closed.connect(installer.kill)
    return installer


class GpuPage(SettingsPage):
    """One button for what can be done, one that removes."""

    def __init__(self, installer: GpuInstaller) -> None:
        self._installer = installer
        self.state, self.note = PlainLabel(), PlainLabel()
        for label in (self.state, self.note):
            label.setWordWrap(True)
        self.progress = QProgressBar()
        self.progress.setTextVisible(False)
        self.install_button, self.cancel_button = QPushButton(), QPushButton(self.tr("Cancel"))
        self.remove_button = QPushButton(self.tr("Remove …"))
        buttons = QWidget()
        row = QHBoxLayout(buttons)
        row.setContentsMargins(0, 0, 0, 0)
        for button in (self.install_button, self.cancel_button, self.remove_button):
            row.addWidget(button)
        row.addStretch(1)
        super().__init__(
            (
                self.tr("GPU"),
                self.state,
                self.tr(
                    "The program includes PyTorch for the processor. Large models need an NVIDIA GPU and "
                    "the PyTorch build for it, which is downloaded from PyPI, verified, and tested "
                    "before it is used. Interrupted downloads resume."
                ),
            ),
            ("", self.note, ""),
            ("", self.progress, ""),
            ("", buttons, ""),
        )
        self.install_button.clicked.connect(installer.install)
        self.cancel_button.clicked.connect(installer.cancel_installation)
        self.remove_button.clicked.connect(self._remove)
        installer.changed.connect(self.show_status)
        self.show_status()

    def showEvent(self, event: QShowEvent) -> None:
        """Look at what is installed now."""
        self._installer.query_status()
        super().showEvent(event)

    def show_status(self) -> None:
        """Show the installer's attributes."""
        installer, status = self._installer, self._installer.status
        is_busy = installer.is_installing
        self.state.setText(self._state())
        self.note.setText(self._note())
        self.note.setVisible(bool(self.note.text()))
        self.progress.setVisible(is_busy)
        self.progress.setRange(0, _PER_MILLE if installer.total else 0)
        self.progress.setValue(installer.done * _PER_MILLE // installer.total if installer.total else 0)
        is_there = status.get("state") in ("active", "ready")
        self.install_button.setText(self.tr("Check and test again") if is_there else self.tr("Install"))
        self.install_button.setEnabled(bool(status) and not is_busy)
        self.cancel_button.setVisible(is_busy and installer.part == "install")
        self.remove_button.setEnabled(bool(status.get("size")) and not is_busy)

    def _state(self) -> str:
        """What is installed, or what is being done."""
        if self._installer.is_installing:
            return self._step()
        status = self._installer.status
        match status.get("state"):
            case None:
                return self.tr("Checking …")
            case "active" | "ready" if status["folder"] in sys.path:
                return self.tr("%1 is in use.").replace("%1", status["torch"])
            case "active" | "ready":
                text = self.tr("%1 is installed. Restart the program to use it.")
                return text.replace("%1", status["torch"])
            case "failed":
                return self.tr("Not used: %1.").replace("%1", status["failure"])
            case "untested":
                return self.tr("Installed, but not tested successfully.")
        text = self.tr("Not installed. Download: %1; on disk: %2.")
        return text.replace("%1", self._size(status["download"])).replace(
            "%2", self._size(status["unpacked"])
        )

    def _step(self) -> str:
        installer = self._installer
        if installer.part == "remove":
            return self.tr("Removing …")
        names = {
            "check": self.tr("Checking …"),
            "download": self.tr("Downloading …"),
            "unpack": self.tr("Unpacking …"),
            "test": self.tr("Testing …"),
        }
        text = names.get(installer.step, self.tr("Starting …"))
        if not installer.total:
            return text
        amount = self.tr("%1 of %2").replace("%1", self._size(installer.done))
        return f"{text} {amount.replace('%2', self._size(installer.total))}"

    def _note(self) -> str:
        """The error, or else the result of the test."""
        if self._installer.error:
            return self._installer.error
        status = self._installer.status
        if self._installer.is_installing or status.get("state") not in ("active", "ready"):
            return ""
        lines = list(status["devices"]) or [self.tr("No GPU was found.")]
        if status["no_triton"]:
            lines.append(self.tr("Slower without Triton: %1.").replace("%1", status["no_triton"]))
        return "\n".join(lines)

    def _size(self, size: int) -> str:
        return self.locale().formattedDataSize(size)

    def _remove(self) -> None:
        if is_confirmed(
            self,
            self.tr("Remove PyTorch for the GPU?"),
            self.tr("From its next start on, the program runs on the processor."),
            self.tr("Remove"),
        ):
            self._installer.uninstall()
