"""One model in the list of the settings: name, size, licence, and what can be done with its files.

In: the model, what is being done with it, whether it is in use. Out: requests to the jobs. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QProgressBar,
    QPushButton,
    QRadioButton,
    QVBoxLayout,
)

from app.gui.common.error_texts import in_words
from app.gui.common.plain_text import PlainLabel, clean
from app.gui.settings.model_jobs import Job
from app.gui.settings.settings_page import keep_line
from app.installed_models import Model, free_bytes

_STEPS = 1000
_LONGEST_NAME = 100


class ModelRow(QFrame):
    """A model that is not installed cannot be chosen, one in use cannot be removed.

    Signals:
        download_wanted, pause_wanted, verify_wanted, remove_wanted: a button was pressed.
    """

    download_wanted = Signal()
    pause_wanted = Signal()
    verify_wanted = Signal()
    remove_wanted = Signal()

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.setProperty("role", "card")
        self.model = model
        self.choice = QRadioButton(clean(model.name, _LONGEST_NAME))
        self.about, self.advice, self.state = PlainLabel(), PlainLabel(), PlainLabel()
        self.bar = QProgressBar()
        self.bar.setTextVisible(False)
        self.bar.setFixedHeight(6)
        for label in (self.about, self.advice, self.state):
            label.setProperty("role", "small")
            label.setWordWrap(True)
        self.download_button, self.pause_button = QPushButton(), QPushButton(self.tr("Pause"))
        self.verify_button = QPushButton(self.tr("Check files"))
        self.remove_button = QPushButton()
        buttons = QHBoxLayout()
        for button, signal in (
            (self.download_button, self.download_wanted),
            (self.pause_button, self.pause_wanted),
            (self.verify_button, self.verify_wanted),
            (self.remove_button, self.remove_wanted),
        ):
            button.clicked.connect(signal)
            buttons.addWidget(button)
        head = QHBoxLayout()
        head.addWidget(self.choice, 1)
        head.addLayout(buttons)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 8, 12, 8)
        layout.setSpacing(4)
        layout.addLayout(head)
        for widget in (self.about, self.advice, self.bar, self.state):
            layout.addWidget(widget)
        self.advice.hide()
        if not model.is_installed:
            keep_line(self.advice)

    def show_model(self, model: Model, job: Job | None, *, is_in_use: bool) -> None:
        """Show its present state. `job` is what is being done, with this model or another one."""
        self.model = model
        own = job if job is not None and job.model.folder == model.folder else None
        is_free = job is None
        self.choice.setEnabled(model.is_installed and not model.problem)
        self.download_button.setVisible(not model.is_installed and own is None)
        self.download_button.setEnabled(is_free)
        self.download_button.setText(self.tr("Resume") if model.loaded_bytes else self.tr("Download"))
        self.pause_button.setVisible(own is not None and own.kind == "download")
        self.verify_button.setVisible(model.is_installed and own is None)
        self.verify_button.setEnabled(is_free)
        is_begun = own is not None and own.kind == "download"
        self.remove_button.setText(self.tr("Remove") if model.is_installed else self.tr("Cancel"))
        self.remove_button.setVisible(is_begun or (model.is_removable and own is None))
        self.remove_button.setEnabled(not is_in_use and (is_free or is_begun))
        for button in (self.download_button, self.pause_button, self.verify_button, self.remove_button):
            button.setAccessibleName(f"{button.text()}: {model.name}")
        self.about.setText(self._about(model))
        self._show_job(own)
        if own is None:
            self._show_rest(model, is_in_use=is_in_use)

    def show_advice(self, text: str) -> None:
        """Where it could run, before it is downloaded."""
        self.advice.setText(text)
        self.advice.setVisible(bool(text))

    def show_note(self, text: str, *, is_error: bool) -> None:
        """The result of what was done with it."""
        self._say(text, is_error=is_error)

    def _about(self, model: Model) -> str:
        size = size_in_words(model.bytes)
        if model.is_installed:
            return f"{size} · {in_words(model.licence)}" if model.licence else size
        free = size_in_words(free_bytes(model.folder))
        text = self.tr("About %1 to download; %2 are free on the disk. Licence: %3.")
        return text.replace("%1", size).replace("%2", free).replace("%3", in_words(model.licence))

    def _show_job(self, job: Job | None) -> None:
        self.bar.setVisible(job is not None)
        if job is None:
            return
        self.bar.setRange(0, _STEPS if job.total else 0)
        if job.total:
            self.bar.setValue(round(job.done / job.total * _STEPS))
        words = {
            "": self.tr("Starting …"),
            "download": self.tr("%1 of %2 are loaded."),
            "check": self.tr("The files are being checked …"),
            "hash": self.tr("The files are being checked …"),
        }
        text = self.tr("The files are being deleted …") if job.kind == "remove" else words[job.step]
        self._say(
            text.replace("%1", size_in_words(job.done)).replace("%2", size_in_words(job.total)),
            is_error=False,
        )

    def _show_rest(self, model: Model, *, is_in_use: bool) -> None:
        if model.problem:
            self._say(in_words(model.problem), is_error=True)
        elif is_in_use:
            self._say(self.tr("In use"), is_error=False)
        elif not model.is_installed and model.loaded_bytes:
            text = self.tr("Paused: %1 are loaded.")
            self._say(text.replace("%1", size_in_words(model.loaded_bytes)), is_error=False)
        else:
            self._say("", is_error=False)

    def _say(self, text: str, *, is_error: bool) -> None:
        self.state.setProperty("role", "banner-title" if is_error else "small")
        self.state.style().polish(self.state)
        self.state.setText(text)
        self.state.setVisible(bool(text))


def size_in_words(size: float) -> str:
    """A size in MB or GB."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
