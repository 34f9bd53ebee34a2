"""The settings page of the engine: folder and Python are examined, and refused in words."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtWidgets import QDialogButtonBox, QWidget
from pytestqt.qtbot import QtBot

from app.gui.common.preferences import Preferences
from app.gui.settings import engine_page, settings_page
from app.gui.settings.engine_page import EnginePage
from app.gui.settings.lookups import EngineChecks
from app.gui.settings.model_page import ModelTools
from app.gui.settings.settings_dialog import SettingsDialog
from app.version import VERSION
from tests.factories.engine_folder import EngineWorld

OF_NANO = {
    "bundle": "nano",
    "library": "1.2.1",
    "precision": "FP8 in 8 of 9 products, bfloat16 elsewhere, K/V FP8",
    "bytes": 12e9,
    "rows_of_a_conversation": 8192,
}
ENVIRONMENT: dict[str, Any] = {
    "python": "3.12.3",
    "moss-voice": VERSION,
    "tensorrt-llm": "1.2.1",
    "missing": [],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What looks like an engine from outside."""
    for name in ("rank0.engine", "config.json"):
        (tmp_path / name).write_text("")
    return tmp_path


@pytest.fixture
def checks(host: QWidget, monkeypatch: pytest.MonkeyPatch) -> EngineChecks:
    """Checks that start no process; the test gives the answers."""
    checks = EngineChecks(host)
    monkeypatch.setattr(checks, "look_up", lambda subject: None)
    return checks


@pytest.fixture
def page(qtbot: QtBot, checks: EngineChecks) -> EnginePage:
    page = EnginePage(checks)
    qtbot.addWidget(page)
    page.follow_bundle("nano")
    page.show()
    return page


def answer(checks: EngineChecks, kind: Any, path: Path | str, found: dict[str, Any]) -> None:
    checks.answers[kind, str(path)] = found
    checks.found.emit()


def show(page: EnginePage, folder: Path | str, python: str = sys.executable) -> None:
    page.show_preferences(Preferences(backend="trtllm", engine=str(folder), engine_python=python))


def test_a_python_can_be_removed_where_the_client_is_missing(
    page: EnginePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_page, "find_spec", lambda name: None)
    page.show_preferences(Preferences(engine_python=sys.executable))
    assert "websockets" in page.python.note.text()
    assert page.python.isEnabled()
    assert not page.is_usable
    page.python.path = ""
    assert not page.python.isEnabled()
    assert page.is_usable


def test_an_engine_is_described_before_it_can_be_applied(
    page: EnginePage, checks: EngineChecks, folder: Path
) -> None:
    show(page, folder)
    assert page.engine.note.text() == page.python.note.text() == "Checking …"
    assert not page.is_usable
    answer(checks, "engine", folder, OF_NANO)
    assert page.engine.note.text() == (
        "Built from nano with TensorRT-LLM 1.2.1: FP8 in 8 of 9 products, bfloat16 elsewhere, K/V FP8. "
        "12.0 GB, up to 8192 positions per conversation."
    )
    assert not page.is_usable
    answer(checks, "python", sys.executable, ENVIRONMENT)
    assert page.python.note.text() == f"Python 3.12.3, MOSS Voice {VERSION}, TensorRT-LLM 1.2.1"
    assert page.is_usable
    assert page.uses_engine
    chosen = page.edited(Preferences())
    assert (chosen.backend, chosen.engine, chosen.engine_python) == ("trtllm", str(folder), sys.executable)


@pytest.mark.parametrize("name", ["", "nowhere", "~nosuch/x", "x" * 5000, "a\0b"])
def test_a_folder_without_an_engine_is_refused(page: EnginePage, name: str) -> None:
    show(page, name)
    assert page.engine.note.text() in (
        "Choose the folder of an engine.",
        "This folder contains no engine: rank0.engine or config.json is missing.",
    )
    assert not page.is_usable
    page.backend_box.setCurrentIndex(0)
    assert page.engine.note.text() == ""
    assert page.engine.is_usable


def test_what_is_wrong_with_an_engine_is_said(page: EnginePage, checks: EngineChecks, folder: Path) -> None:
    show(page, folder)
    answer(checks, "engine", folder, {"error": "It mixes files of two builds."})
    assert page.engine.note.text() == "It mixes files of two builds."
    assert not page.engine.is_usable


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({"moss-voice": None}, "MOSS Voice is not installed in that environment."),
        ({"missing": ["fastapi", "uvicorn"]}, "This Python lacks packages: fastapi, uvicorn."),
        ({"tensorrt-llm": None}, "TensorRT-LLM is not installed in that environment."),
    ],
)
def test_an_environment_that_cannot_run_the_engine_is_refused(
    page: EnginePage, checks: EngineChecks, folder: Path, found: dict[str, Any], text: str
) -> None:
    show(page, folder)
    answer(checks, "engine", folder, OF_NANO)
    answer(checks, "python", sys.executable, ENVIRONMENT | found)
    assert page.python.note.text() == text
    assert not page.is_usable


def test_pytorch_needs_no_tensorrt_of_another_environment(page: EnginePage, checks: EngineChecks) -> None:
    page.show_preferences(Preferences(engine_python=sys.executable))
    answer(checks, "python", sys.executable, ENVIRONMENT | {"tensorrt-llm": None, "moss-voice": "0.0.1"})
    assert page.python.note.text() == (
        f"Python 3.12.3, MOSS Voice 0.0.1. This program has version {VERSION}. "
        "Install the same version in that environment."
    )
    assert page.is_usable


def test_names_that_nothing_can_start_are_refused(
    page: EnginePage, checks: EngineChecks, folder: Path
) -> None:
    for name in ("/nowhere/python", str(folder), str(folder / "config.json"), "a\0b"):
        page.show_preferences(Preferences(engine_python=name))
        assert "does not exist" in page.python.note.text()
        assert not page.is_usable
    page.show_preferences(Preferences(engine_python=sys.executable))
    answer(checks, "python", sys.executable, {"error": "No such option."})
    assert page.python.note.text().endswith("No such option.")


def test_this_program_needs_tensorrt_itself(page: EnginePage, folder: Path) -> None:
    show(page, folder, python="")
    assert "This program has no TensorRT-LLM." in page.python.note.text()
    assert not page.is_usable


def test_another_model_is_run_by_pytorch(page: EnginePage, checks: EngineChecks, folder: Path) -> None:
    show(page, folder)
    answer(checks, "engine", folder, OF_NANO)
    page.follow_bundle("moss-speech")
    assert "moss-speech" in page.engine.note.text()
    assert not page.uses_engine
    chosen = page.edited(Preferences())
    assert (chosen.backend, chosen.engine) == ("torch", str(folder)), "it is used again with its model"
    page.follow_bundle("nano")
    assert page.uses_engine


def test_a_page_that_nobody_has_seen_refuses_nothing(qtbot: QtBot, checks: EngineChecks) -> None:
    page = EnginePage(checks)
    qtbot.addWidget(page)
    show(page, "/gone", "/gone/python")
    assert page.is_usable
    assert page.edited(Preferences()).engine == "/gone"


def test_the_page_of_the_model_says_what_the_engine_sets(qtbot: QtBot, tmp_path: Path) -> None:
    preferences = Preferences(backend="trtllm", engine=str(tmp_path), device="cuda:0", weights="int4")
    dialog = SettingsDialog(preferences, None)
    qtbot.addWidget(dialog)
    device = dialog.model.device
    assert device.note.text() == "Set by the TensorRT-LLM engine: weights, keys and values."
    assert not device.weights_box.isEnabled()
    assert not device.saves_memory.isEnabled()
    assert dialog.preferences() == preferences, "what PyTorch would use is kept"
    dialog.engine.backend_box.setCurrentIndex(0)
    assert device.note.text() == ""
    assert device.weights_box.isEnabled()
    dialog.show_preferences(Preferences(backend="trtllm", engine=str(tmp_path)))
    assert "first GPU" in device.note.text()
    dialog.open_engine()
    dialog.show()
    assert dialog.engine.isVisible()
    assert not dialog.buttons.button(QDialogButtonBox.StandardButton.Ok).isEnabled()


@pytest.fixture
def tools(host: QWidget) -> Iterator[ModelTools]:
    tools = ModelTools(host)
    yield tools
    tools.kill()


@pytest.mark.slow
def test_folder_and_python_are_examined_in_processes_of_their_own(
    qtbot: QtBot,
    tools: ModelTools,
    engine_world: EngineWorld,
    nano_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_page, "PAUSE_MS", 0)
    engine = engine_world.build(nano_bundle, tmp_path / "engine")
    page = EnginePage(tools.checks)
    qtbot.addWidget(page)
    page.show()
    show(page, engine)
    qtbot.waitUntil(lambda: len(tools.checks.answers) == 2)
    assert page.engine.note.text().startswith(
        "Built from nano with TensorRT-LLM 1.2.1: float32, K/V float32."
    )
    assert page.engine.is_usable
    assert page.python.note.text() in (
        "TensorRT-LLM is not installed in that environment.",  # as here
        "MOSS Voice is not installed in that environment.",
    )
    (engine / "config.json").write_text("{}")
    page.hide()
    page.show()
    qtbot.waitUntil(lambda: "is not that of an engine" in page.engine.note.text())
    assert not page.engine.is_usable
