"""The list of models: which one is chosen, what its buttons do, what its rows say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from app import paths
from app.gui.settings import model_list
from app.gui.settings.model_jobs import Job, ModelJobs
from app.gui.settings.model_list import ModelList, ModelRow
from app.gui.settings.settings_page import FileField
from app.installed_models import RELEASED, Model
from engine_runtime.errors import Problem


@pytest.fixture
def jobs(host: QWidget) -> Iterator[ModelJobs]:
    jobs = ModelJobs(host)
    yield jobs
    jobs.kill()


@pytest.fixture
def begun(jobs: ModelJobs, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The kinds and models of the jobs that would begin."""
    begun: list[tuple[str, str]] = []

    def note(kind: str, model: Model) -> None:
        begun.append((kind, model.folder.name))

    for kind in ("download", "verify", "remove"):
        monkeypatch.setattr(jobs, f"{kind}_model", partial(note, kind))
    return begun


@pytest.fixture
def models(qtbot: QtBot, jobs: ModelJobs, begun: list[tuple[str, str]], nano_bundle: Path) -> ModelList:
    models = ModelList(FileField("Folder", "", lambda start: start), jobs, nano_bundle)
    qtbot.addWidget(models)
    models.bundle = ""
    models.show()
    return models


def rows(models: ModelList) -> tuple[ModelRow, ModelRow]:
    nano, released = models.rows
    return nano, released


def half_of_it(released: ModelRow) -> None:
    folder = released.model.folder
    folder.mkdir(parents=True)
    (folder / "shard.part").write_bytes(bytes(3_000_000))


def test_the_model_in_use_is_chosen_and_cannot_be_removed(models: ModelList) -> None:
    nano, released = rows(models)
    assert nano.choice.isChecked()
    assert models.bundle == ""
    assert nano.state.text() == "In use"
    assert "Apache-2.0" in nano.about.text()
    assert not nano.remove_button.isVisible()
    assert not released.choice.isEnabled()
    assert "Download: about 20.0 GB" in released.about.text()
    assert "without a licence file" in released.about.text()
    assert models.other.isHidden()


def test_a_bundle_elsewhere_is_chosen_by_its_path(models: ModelList, qtbot: QtBot) -> None:
    models.bundle = "/models/mine"
    assert models.other_choice.isChecked()
    assert models.other.path == "/models/mine"
    assert models.bundle == "/models/mine"
    with qtbot.waitSignal(models.changed):
        rows(models)[0].choice.setChecked(True)
    assert models.bundle == ""
    models.bundle = str(paths.default_bundle())
    assert models.bundle == ""


def test_the_buttons_begin_jobs(
    models: ModelList, begun: list[tuple[str, str]], nano_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nano, released = rows(models)
    nano.verify_button.click()
    released.download_button.click()
    assert begun == [("verify", nano_bundle.name), ("download", RELEASED)]
    half_of_it(released)
    models.find_files()
    assert "3.0 MB" in released.state.text()
    assert released.download_button.text() == "Resume"
    assert released.remove_button.text() == "Cancel"
    asked: list[str] = []

    def answer(parent: QWidget, question: str, consequence: str, action: str) -> bool:
        asked.append(question)
        return len(asked) > 1

    monkeypatch.setattr(model_list, "is_confirmed", answer)
    released.remove_button.click()
    assert len(begun) == 2
    released.remove_button.click()
    assert begun[2] == ("remove", RELEASED)
    assert "moss-speech" in asked[0]


def test_progress_is_shown_in_its_row(models: ModelList, jobs: ModelJobs) -> None:
    nano, released = rows(models)
    jobs.job = Job("download", released.model)
    jobs.changed.emit()
    assert released.state.text() == "Starting …"
    assert not released.download_button.isVisible()
    assert released.pause_button.isVisible()
    assert released.remove_button.isVisible()
    assert not nano.verify_button.isEnabled()
    jobs.job = replace(jobs.job, step="download", done=5e9, total=20e9)
    jobs.changed.emit()
    assert "5.0 GB of 20.0 GB" in released.state.text()
    assert released.bar.value() / released.bar.maximum() == pytest.approx(0.25)
    job, jobs.job = jobs.job, None
    jobs.changed.emit()
    jobs.failed.emit(job, Problem("The disk is full.", "Free some space."))
    assert released.state.text() == "The disk is full. Free some space."
    assert released.bar.isHidden()
    assert nano.verify_button.isEnabled()


def test_a_checked_model_says_so(models: ModelList, jobs: ModelJobs) -> None:
    nano, _ = rows(models)
    jobs.finished.emit(Job("verify", nano.model))
    assert "All files" in nano.state.text()


def test_a_model_that_was_removed_is_not_chosen_any_more(models: ModelList, jobs: ModelJobs) -> None:
    nano, released = rows(models)
    installed = replace(released.model, is_installed=True, bytes=20 * 10**9)
    released.show_model(installed, None, is_in_use=False)
    assert released.remove_button.text() == "Remove"
    released.choice.setChecked(True)
    assert models.bundle == str(installed.folder)
    jobs.changed.emit()
    jobs.finished.emit(Job("remove", installed))
    assert nano.choice.isChecked()
    assert models.bundle == ""


def test_a_damaged_model_cannot_be_chosen(models: ModelList) -> None:
    _, released = rows(models)
    damaged = Model(RELEASED, released.model.folder, 5, "", problem=Problem("A file is cut short."))
    released.show_model(damaged, None, is_in_use=False)
    assert not released.choice.isEnabled()
    assert released.state.text() == "A file is cut short."
    assert released.remove_button.isVisible()


def test_a_model_that_fits_nowhere_is_downloaded_only_after_a_question(
    models: ModelList, begun: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, released = rows(models)
    asked: list[tuple[str, str]] = []
    answers = [False, True]

    def answer(parent: QWidget, question: str, consequence: str, action: str) -> bool:
        asked.append((question, consequence))
        return answers.pop(0)

    monkeypatch.setattr(model_list, "is_confirmed", answer)
    models.advise(RELEASED, "No GPU of this computer has enough memory for it.", fits=False)
    released.download_button.click()
    assert begun == []
    released.download_button.click()
    assert begun == [("download", RELEASED)]
    assert asked[0] == (
        "Download moss-speech although it fits on no GPU of this computer?",
        "About 20.0 GB will be downloaded and kept on disk.",
    )
    half_of_it(released)
    models.find_files()
    released.download_button.click()  # continues
    models.advise(RELEASED, "It fits on cuda:0.", fits=True)
    assert len(asked) == 2
    assert len(begun) == 2


def test_the_page_keeps_its_height_when_the_advice_comes(models: ModelList, qtbot: QtBot) -> None:
    _, released = rows(models)
    before = released.sizeHint().height()
    models.advise(RELEASED, "It fits on cuda:0.")
    assert released.advice.isVisible()
    assert released.sizeHint().height() == before
