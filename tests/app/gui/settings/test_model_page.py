"""The settings page of the model: a bundle or a voice that would not load is refused; what fits is said."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PySide6.QtWidgets import QFileDialog, QWidget
from pytestqt.qtbot import QtBot

from app.audio.wav import WavWriter
from app.gui.common.preferences import Preferences
from app.gui.settings.lookups import DeviceRoom
from app.gui.settings.model_page import ModelPage, ModelTools
from app.settings import StartSettings
from engine_runtime.bundle.released.assembly import assemble
from engine_runtime.bundle.released.layout import find_released, locate
from engine_runtime.options import EngineOptions, WeightFormat
from tests.engine_runtime.bundle.test_vocoder_file import SPEC
from tests.engine_runtime.bundle.test_vocoder_file import write as write_vocoder


def make(qtbot: QtBot, **preferences: Any) -> ModelPage:
    page = ModelPage()
    qtbot.addWidget(page)
    page.show_preferences(Preferences(**preferences))
    return page


def test_a_folder_without_a_bundle_is_refused(qtbot: QtBot, tmp_path: Path) -> None:
    page = make(qtbot, bundle=str(tmp_path))
    assert not page.is_usable
    assert "bundle.toml" in page.bundle.note.text()
    (tmp_path / "bundle.toml").write_text("")
    with qtbot.waitSignal(page.files_checked):
        page.bundle.path = f"{tmp_path}/"
    assert page.is_usable
    assert page.bundle.note.text() == ""


@pytest.fixture
def voiced(released_folder: Path, tmp_path: Path) -> Path:
    """A bundle that can take on a voice: speech from 3.2 s on, in steps of 0.4 s."""
    assemble(find_released(*locate(released_folder)), tmp_path / "voiced")
    return tmp_path / "voiced"


def recording(file: Path, seconds: float, level: float = 0.1) -> str:
    with WavWriter(file, 16000) as writer:
        writer.write(np.random.default_rng(0).normal(0, level, round(16000 * seconds)).astype(np.float32))
    return str(file)


@pytest.mark.slow
def test_a_voice_is_chosen_and_shown(
    qtbot: QtBot, voiced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = make(qtbot, bundle=str(voiced))
    file = recording(tmp_path / "me.wav", 4.7)
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: (file, ""))
    page.voice.button.click()
    assert page.edited(Preferences()).voice == file
    assert page.voice.note.text().startswith("4.4 s")
    assert page.is_usable
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: ("", ""))  # cancelled
    page.voice.button.click()
    assert page.edited(Preferences()).voice == file


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "level", "reason"),
    [
        (2.0, 0.1, "holds 2.0 s of speech, and at least 3.2 s are needed. Choose a longer one."),
        (4.0, 0.0, "The recording of the voice is silent. Record it again, or choose another one."),
    ],
)
def test_an_unusable_recording_is_refused(
    qtbot: QtBot, voiced: Path, tmp_path: Path, seconds: float, level: float, reason: str
) -> None:
    page = make(qtbot, bundle=str(voiced))
    page.voice.path = recording(tmp_path / "me.wav", seconds, level)
    assert page.voice.note.text().endswith(reason)
    assert not page.is_usable
    page.voice.path = ""
    assert page.is_usable
    page.voice.path = str(tmp_path / "nowhere.wav")
    assert "There is no file" in page.voice.note.text()
    assert not page.is_usable


def test_a_bundle_with_one_voice_takes_no_other(qtbot: QtBot, random_bundle: Path, tmp_path: Path) -> None:
    page = make(qtbot, bundle=str(random_bundle))
    page.voice.path = recording(tmp_path / "me.wav", 4.0)
    assert "has no speaker encoder" in page.voice.note.text()
    assert not page.is_usable


@pytest.mark.parametrize("name", ["~nosuch/x", "~nosuch", "x" * 5000, "a\0b"])
def test_names_that_nothing_has_are_refused_in_words(qtbot: QtBot, name: str) -> None:
    page = make(qtbot, bundle=name)
    assert "no bundle.toml" in page.bundle.note.text()
    assert not page.is_usable
    page.bundle.path, page.voice.path = "", name
    assert page.voice.note.text()
    assert not page.is_usable


GB = 10**9


@pytest.fixture
def tools(host: QWidget, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelTools]:
    """Tools that start no process; their plan is made by the test."""
    tools = ModelTools(host)
    monkeypatch.setattr(tools.plans, "look_up", lambda bundle: None)
    yield tools
    tools.kill()


def room(free: int) -> list[DeviceRoom]:
    needs: dict[tuple[WeightFormat, bool], int] = {
        ("native", False): 26 * GB,
        ("fp8", False): 17 * GB,
        ("int4", True): 9 * GB,
    }
    return [DeviceRoom("cuda:0", "a GPU", 24 * GB, free, needs)]


def test_the_memory_of_the_running_engine_counts_as_free(
    qtbot: QtBot, tools: ModelTools, nano_bundle: Path
) -> None:
    running = StartSettings(engine=EngineOptions(device="cuda:0", weight_format="fp8"))
    page = ModelPage(tools, running)
    qtbot.addWidget(page)
    page.show_preferences(Preferences(device="cuda:0", weights="fp8"))
    tools.plans.rooms[str(nano_bundle)] = room(free=6 * GB)
    tools.plans.found.emit(str(nano_bundle))
    assert "17.0 GB of 23.0 GB" in page.device.note.text()
    page.device.weights_box.setCurrentText("native")
    assert "Choose a smaller model" in page.device.note.text()
    assert page.edited(Preferences()).weights == "native"
    tools.plans.rooms[str(nano_bundle)] = room(free=20 * GB)
    tools.plans.found.emit("/another/bundle")
    assert "23.0 GB" in page.device.note.text()


def test_another_model_that_does_not_fit_here_gets_a_device_where_it_does(
    qtbot: QtBot, tools: ModelTools, random_bundle: Path
) -> None:
    page = ModelPage(tools, StartSettings())
    qtbot.addWidget(page)
    page.show_preferences(Preferences(bundle=str(random_bundle)))
    processor = DeviceRoom("cpu", "a processor", 32 * GB, 30 * GB, {("native", False): 40 * GB})
    tools.plans.rooms[str(random_bundle)] = [processor, *room(free=20 * GB)]
    tools.plans.found.emit(str(random_bundle))
    chosen = page.edited(Preferences())
    assert (chosen.device, chosen.weights, chosen.saves_memory) == ("cuda:0", "fp8", False)


def test_a_vocoder_is_checked_against_the_bundle(
    qtbot: QtBot, random_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = make(qtbot, bundle=str(random_bundle))
    file, other = tmp_path / "vocoder.safetensors", tmp_path / "other.safetensors"
    write_vocoder(file, SPEC)
    write_vocoder(other, dataclasses.replace(SPEC, fmax=12_000.0))
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: (str(file), ""))
    page.vocoder.button.click()
    assert page.edited(Preferences()).vocoder == str(file)
    assert page.is_usable
    assert page.vocoder.note.text() == ""
    page.vocoder.path = str(other)
    assert not page.is_usable
    assert "fmax" in page.vocoder.note.text()
    page.vocoder.path = str(tmp_path / "gone.safetensors")
    assert not page.is_usable
    assert "There is no vocoder file at" in page.vocoder.note.text()
    page.vocoder.path = ""
    assert page.is_usable
