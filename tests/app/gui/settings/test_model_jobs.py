"""Download, pause, resume, cancel, check and removal of a model, against a hub on this computer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from app import paths
from app.gui.settings.model_jobs import Job, ModelJobs
from app.installed_models import RELEASED, Model, find_models
from engine_runtime.bundle.bundle import Bundle
from tests.doubles.hub_server import HubServer, repositories_in

LATE = "flow/hift.pt"
"""Of the second repository: the first one is complete by then."""
pytestmark = pytest.mark.slow


@pytest.fixture
def hub(released_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer(repositories_in(released_folder)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        yield hub


@pytest.fixture
def jobs(host: QWidget) -> Iterator[ModelJobs]:
    jobs = ModelJobs(host)
    yield jobs
    jobs.kill()


def released() -> Model:
    return find_models()[-1]


def test_a_download_is_paused_resumed_checked_and_removed(
    qtbot: QtBot, jobs: ModelJobs, hub: HubServer
) -> None:
    hub.held = {LATE}
    steps: list[Job] = []
    jobs.changed.connect(lambda: steps.append(jobs.job) if jobs.job else None)
    jobs.download_model(released())
    jobs.verify_model(released())  # one at a time
    assert jobs.job is not None
    assert jobs.job.kind == "download"

    qtbot.waitUntil(lambda: LATE in hub.asked_for)
    jobs.stop_job()
    qtbot.waitUntil(lambda: jobs.job is None)
    paused = released()
    assert not paused.is_installed
    assert paused.loaded_bytes > 0

    hub.held.clear()
    hub.asked_for.clear()
    with qtbot.waitSignal(jobs.finished):
        jobs.download_model(paused)
    assert LATE in hub.asked_for
    assert "tokenizer.json" not in hub.asked_for
    assert {"download", "check", "hash"} <= {job.step for job in steps}
    last = [job for job in steps if job.step == "download"][-1]
    assert last.done == last.total > 0
    folder = paths.user_bundles_dir() / RELEASED
    assert Bundle.open(folder, verify="sha256").name == RELEASED

    with qtbot.waitSignal(jobs.finished):
        jobs.verify_model(released())
    tokenizer = folder / "MOSS-Speech" / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes()[:-1] + b" ")
    with qtbot.waitSignal(jobs.failed) as failed:
        jobs.verify_model(released())
    assert "tokenizer.json is not the file" in str(failed.args[1])

    with qtbot.waitSignal(jobs.finished):
        jobs.remove_model(released())
    assert not folder.exists()


def test_a_cancelled_download_leaves_nothing(qtbot: QtBot, jobs: ModelJobs, hub: HubServer) -> None:
    hub.held = {LATE}
    jobs.download_model(released())
    qtbot.waitUntil(lambda: LATE in hub.asked_for)
    with qtbot.waitSignal(jobs.finished) as finished:
        jobs.remove_model(released())
    assert finished.args[0].kind == "remove"
    assert not (paths.user_bundles_dir() / RELEASED).exists()


def test_a_hub_that_is_not_there_is_an_error(
    qtbot: QtBot, jobs: ModelJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    with qtbot.waitSignal(jobs.failed) as failed:
        jobs.download_model(released())
    assert "cannot be loaded from http://127.0.0.1:9" in str(failed.args[1])
    assert failed.args[1].what_to_do
    assert jobs.job is None
