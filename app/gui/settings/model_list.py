"""The list of models: which one is used, and download, check and removal of their files.

In: the models on this computer, progress and end of the jobs. Out: the chosen bundle; requests to the jobs.
GUI thread.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from PySide6.QtCore import QT_TRANSLATE_NOOP, QCoreApplication, Signal
from PySide6.QtWidgets import (
    QButtonGroup,
    QFrame,
    QHBoxLayout,
    QProgressBar,
    QPushButton,
    QRadioButton,
    QVBoxLayout,
    QWidget,
)

from app import paths
from app.gui.common.error_texts import in_words
from app.gui.common.plain_text import PlainLabel, clean
from app.gui.common.question import is_confirmed
from app.gui.settings.model_jobs import Job, ModelJobs
from app.gui.settings.settings_page import FileField, keep_line, size_in_words
from app.installed_models import Model, find_models, free_bytes
from engine_runtime.errors import Problem

_PROGRESS_STEPS = 1000
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
        self.choice.setEnabled(model.is_installed and model.problem is None)
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
        """Show the result of the job."""
        self._say(text, is_error=is_error)

    def _about(self, model: Model) -> str:
        size = size_in_words(model.bytes)
        if model.is_installed:
            return f"{size} · {_licence_in_words(model)}" if model.licence else size
        free = size_in_words(free_bytes(model.folder))
        text = self.tr("Download: about %1; free on disk: %2. Licence: %3.")
        return text.replace("%1", size).replace("%2", free).replace("%3", _licence_in_words(model))

    def _show_job(self, job: Job | None) -> None:
        self.bar.setVisible(job is not None)
        if job is None:
            return
        self.bar.setRange(0, _PROGRESS_STEPS if job.total else 0)
        if job.total:
            self.bar.setValue(round(job.done / job.total * _PROGRESS_STEPS))
        words = {
            "": self.tr("Starting …"),
            "download": self.tr("%1 of %2 downloaded."),
            "check": self.tr("Checking files …"),
            "hash": self.tr("Checking files …"),
        }
        text = self.tr("Deleting files …") if job.kind == "remove" else words[job.step]
        self._say(
            text.replace("%1", size_in_words(job.done)).replace("%2", size_in_words(job.total)),
            is_error=False,
        )

    def _show_rest(self, model: Model, *, is_in_use: bool) -> None:
        if model.problem is not None:
            self._say(in_words(model.problem), is_error=True)
        elif is_in_use:
            self._say(self.tr("In use"), is_error=False)
        elif not model.is_installed and model.loaded_bytes:
            text = self.tr("Paused: %1 downloaded.")
            self._say(text.replace("%1", size_in_words(model.loaded_bytes)), is_error=False)
        else:
            self._say("", is_error=False)

    def _say(self, text: str, *, is_error: bool) -> None:
        self.state.setProperty("role", "banner-title" if is_error else "small")
        self.state.style().polish(self.state)
        self.state.setText(text)
        self.state.setVisible(bool(text))


def _licence_in_words(model: Model) -> str:
    """For the released model a remark of this program, for any other the licence that its bundle states."""
    remark = QT_TRANSLATE_NOOP(
        "ModelRow", "weights without a licence file (the code of MOSS-Speech is Apache-2.0)"
    )
    return QCoreApplication.translate("ModelRow", remark) if model.licence == remark else model.licence


class ModelList(QWidget):
    """One row for each model, and one for a bundle in any other folder, whose path `other` holds.

    `jobs` outlives the list: a download continues when the settings are closed. Without it nothing can be
    downloaded, checked or removed. `in_use` is the folder of the model that runs.

    Signals:
        changed: another model was chosen, or the other folder edited.
    """

    changed = Signal()

    def __init__(self, other: FileField, jobs: ModelJobs | None, in_use: Path | None = None) -> None:
        super().__init__()
        self.other, self._jobs, self._in_use = other, jobs, in_use
        self.rows: list[ModelRow] = []
        self._unfit: frozenset[ModelRow] = frozenset()
        self.other_choice = QRadioButton(self.tr("A bundle in another folder"))
        self._group = QButtonGroup(self)
        self._group.addButton(self.other_choice)
        self._rows = QVBoxLayout()
        self._rows.setSpacing(8)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addLayout(self._rows)
        for model in find_models():
            self._add_row(model, jobs)
        layout.addWidget(self.other_choice)  # after the rows also in the order of the focus
        self.setFocusProxy(self.rows[0].choice if self.rows else self.other_choice)
        layout.addWidget(other)
        self._group.buttonToggled.connect(self._choose)
        other.changed.connect(self.changed)
        if jobs is not None:
            jobs.changed.connect(self._show_jobs)
            jobs.finished.connect(self._finish)
            jobs.failed.connect(self._fail)
        self.find_files()

    @property
    def bundle(self) -> str:
        """The chosen one as in the preferences: a path, "" for the one that came with the program."""
        for row in self.rows:
            if row.choice.isChecked():
                folder = row.model.folder
                return "" if folder == paths.default_bundle() else str(folder)
        return self.other.path

    @bundle.setter
    def bundle(self, bundle: str) -> None:
        folder = paths.user_path(bundle) if bundle else paths.default_bundle()
        row = next((row for row in self.rows if row.model.folder == folder and row.choice.isEnabled()), None)
        self.other.path = "" if row is not None else bundle
        (self.other_choice if row is None else row.choice).setChecked(True)
        self._choose()

    def find_files(self) -> None:
        """Look at the files again."""
        found = {model.folder: model for model in find_models()}
        for row in self.rows:
            self._show(row, found.get(row.model.folder, row.model))

    @property
    def can_download(self) -> bool:
        """Whether there is a model that is not installed."""
        return any(not row.model.is_installed for row in self.rows)

    def advise(self, name: str, text: str, *, fits: bool = True) -> None:
        """Say where a model that is not installed could run; one that fits nowhere is downloaded only if the
        user confirms it."""
        for row in self.rows:
            if row.model.folder.name == name:
                self._unfit = self._unfit - {row} if fits else self._unfit | {row}
                row.show_advice("" if row.model.is_installed else text)

    def _add_row(self, model: Model, jobs: ModelJobs | None) -> None:
        row = ModelRow(model)
        self._rows.addWidget(row)
        self.rows.append(row)
        self._group.addButton(row.choice)
        if jobs is None:
            return
        row.pause_wanted.connect(jobs.stop_job)
        row.remove_wanted.connect(partial(self._remove, row, jobs))
        row.download_wanted.connect(partial(self._download, row, jobs))
        row.verify_wanted.connect(lambda: jobs.verify_model(row.model))

    def _download(self, row: ModelRow, jobs: ModelJobs) -> None:
        model = row.model
        if row in self._unfit and not model.loaded_bytes:
            question = self.tr("Download %1 although it fits on no GPU of this computer?")
            consequence = self.tr("About %1 will be downloaded and kept on disk.")
            if not is_confirmed(
                self,
                question.replace("%1", model.name),
                consequence.replace("%1", size_in_words(model.bytes)),
                row.download_button.text(),
            ):
                return
        jobs.download_model(model)

    def _remove(self, row: ModelRow, jobs: ModelJobs) -> None:
        if row.model.is_installed:
            question = self.tr("Remove %1 from this computer?")
            consequence = self.tr("It can be downloaded again.")
        else:
            question = self.tr("Cancel the download of %1?")
            consequence = self.tr("The part that was downloaded will be deleted.")
        action = row.remove_button.text()
        if is_confirmed(self, question.replace("%1", row.model.name), consequence, action):
            jobs.remove_model(row.model)

    def _choose(self) -> None:
        self.other.setVisible(self.other_choice.isChecked())
        self.changed.emit()

    def _show_jobs(self) -> None:
        """Progress goes to its row; the files are looked at again when a job begins or ends."""
        job = self._jobs.job if self._jobs is not None else None
        if job is None or not job.step:
            self.find_files()
            return
        for row in self.rows:
            if row.model.folder == job.model.folder:
                self._show(row, row.model)

    def _show(self, row: ModelRow, model: Model) -> None:
        job = self._jobs.job if self._jobs is not None else None
        row.show_model(model, job, is_in_use=model.folder == self._in_use)

    def _finish(self, job: Job) -> None:
        notes = {
            "download": self.tr("Downloaded and checked."),
            "verify": self.tr("All files are intact."),
        }
        if job.kind == "remove" and self.bundle == str(job.model.folder):
            self.bundle = ""
        self._note(job.model, notes.get(job.kind, ""), is_error=False)

    def _fail(self, job: Job, problem: Problem) -> None:
        self._note(job.model, in_words(problem), is_error=True)

    def _note(self, model: Model, text: str, *, is_error: bool) -> None:
        for row in self.rows:
            if row.model.folder == model.folder and text:
                row.show_note(text, is_error=is_error)
