"""The guide of the first start: its steps, what it proposes, what it applies, and that it can be skipped."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.gui.common import preferences as preferences_module
from app.gui.common.preferences import Preferences, PreferenceStore
from app.gui.settings.guide_dialog import GuideDialog
from app.gui.settings.lookups import DevicePlans, DeviceRoom
from app.gui.settings.settings_actions import SettingsActions
from app.gui.window.main_window import MainWindow
from app.gui.window.run import run_gui
from app.installed_models import RELEASED
from app.session.commands import SetDevices
from app.session.events import DevicesChanged, EngineReady
from engine_runtime.options import WeightFormat
from tests.doubles.scripted_session import ScriptedSession

GB = 10**9
DEVICES = DevicesChanged(("USB headset", "webcam"), ("USB headset",), "USB headset", "USB headset")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The bundles whose plans were asked for; no process is started."""
    asked: list[str] = []
    monkeypatch.setattr(DevicePlans, "look_up", lambda self, bundle: asked.append(bundle))
    return asked


@pytest.fixture
def guide(asked: list[str], window: MainWindow, session: ScriptedSession) -> GuideDialog:
    session.feed(DEVICES, EngineReady("nano", 1.0, 16_000, 24_000))
    window.bridge.poll()
    session.commands.clear()
    return window.settings.open_guide()


def find_gpu(window: MainWindow, bundle: Path, free_gb: int = 20) -> None:
    """The devices are known: a GPU on which fp8 fits."""
    needs: dict[tuple[WeightFormat, bool], int] = {("native", False): 24 * GB, ("fp8", False): 17 * GB}
    rooms = [
        DeviceRoom("cpu", "a processor", 32 * GB, 30 * GB, {("native", False): 2 * GB}),
        DeviceRoom("cuda:0", "a GPU", 24 * GB, free_gb * GB, needs),
    ]
    window.settings.tools.plans.rooms[str(bundle)] = rooms
    window.settings.tools.plans.found.emit(str(bundle))


@pytest.mark.slow
def test_its_steps_lead_to_settings_that_fit(
    guide: GuideDialog, window: MainWindow, asked: list[str], nano_bundle: Path, session: ScriptedSession
) -> None:
    assert guide.place.text() == "Step 1 of 3"
    assert not guide.back_button.isVisible()
    assert asked == []  # finding out takes seconds: not before somebody looks
    guide.sound.input_box.setCurrentIndex(guide.sound.input_box.findData("webcam"))
    guide.sound.input_box.activated.emit(0)
    assert session.commands == [SetDevices("webcam", None)]
    guide.next_button.click()
    assert asked == [str(nano_bundle)]
    find_gpu(window, nano_bundle)
    assert asked == [str(nano_bundle), RELEASED]
    assert guide.preferences().device == "cpu"  # where nano fits
    guide.model.device.recommend()
    guide.next_button.click()
    assert "Microphone: webcam" in guide.summary.text()
    assert "Model: nano" in guide.summary.text()
    assert "Weights: fp8" in guide.summary.text()
    assert guide.next_button.text() == "Finish"
    guide.back_button.click()
    assert guide.place.text() == "Step 2 of 3"
    guide.next_button.click()
    guide.next_button.click()
    current = window.applied.current
    assert (current.device, current.weights, current.input_device) == ("cuda:0", "fp8", "webcam")
    assert window.applied.store.load() == current


@pytest.mark.slow
def test_the_words_above_each_page_have_their_height(guide: GuideDialog) -> None:
    heights = []
    for _ in range(guide.stack.count()):
        QApplication.processEvents()
        heights.append(guide.text.height())
        assert guide.text.height() == guide.text.heightForWidth(guide.text.width())
        guide.next_button.click()
    assert heights[0] == heights[2] < heights[1]  # two lines


@pytest.mark.slow
def test_where_the_released_model_would_fit_is_said_before_its_download(
    guide: GuideDialog, window: MainWindow, nano_bundle: Path
) -> None:
    guide.next_button.click()
    find_gpu(window, nano_bundle)
    find_gpu(window, Path(RELEASED))
    released = guide.model.models.rows[-1]
    assert "cuda:0 (a GPU) with fp8 weights" in released.advice.text()
    find_gpu(window, Path(RELEASED), free_gb=10)
    assert released.advice.text().startswith("No usable GPU of this computer")


@pytest.mark.slow
def test_it_is_skipped_without_a_trace(
    qtbot: QtBot, guide: GuideDialog, window: MainWindow, nano_bundle: Path
) -> None:
    before = window.applied.current
    guide.next_button.click()
    find_gpu(window, nano_bundle)
    qtbot.keyClick(guide, Qt.Key.Key_Escape)
    assert guide.isHidden()
    assert window.applied.current == before


@pytest.mark.slow
def test_a_bundle_that_would_not_load_holds_it_up(guide: GuideDialog, tmp_path: Path) -> None:
    guide.next_button.click()
    guide.model.models.other_choice.setChecked(True)
    guide.model.bundle.path = str(tmp_path)
    assert not guide.next_button.isEnabled()
    guide.model.bundle.path = ""
    assert guide.next_button.isEnabled()


@pytest.mark.slow
def test_devices_that_come_are_listed(
    guide: GuideDialog, window: MainWindow, session: ScriptedSession
) -> None:
    session.feed(dataclasses.replace(DEVICES, inputs=("USB headset", "webcam", "new one")))
    window.bridge.poll()
    assert guide.sound.input_box.findData("new one") > 0


@pytest.mark.slow
def test_the_help_menu_shows_it_again(asked: list[str], window: MainWindow) -> None:
    window.help.guide_action.trigger()
    assert any(isinstance(child, GuideDialog) and child.isVisible() for child in window.children())


@pytest.mark.slow
@pytest.mark.parametrize(("is_first", "is_minimised"), [(True, False), (False, False), (True, True)])
def test_only_the_first_start_shows_it(
    qtbot: QtBot,
    qapp: QApplication,
    asked: list[str],
    session: ScriptedSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_first: bool,
    is_minimised: bool,
) -> None:
    file = tmp_path / "first" / "window.ini"
    monkeypatch.setattr(preferences_module, "default_file", lambda: file)
    if not is_first:
        PreferenceStore().save(Preferences(language="en"))
    assert PreferenceStore().is_new == is_first
    shown: list[bool] = []

    def look(self: SettingsActions) -> GuideDialog:
        shown.append(True)
        return real(self)

    real = SettingsActions.open_guide
    monkeypatch.setattr(SettingsActions, "open_guide", look)

    def close() -> None:
        for widget in qapp.topLevelWidgets():
            if isinstance(widget, GuideDialog) and widget.isVisible():
                widget.reject()
        assert not PreferenceStore().is_new or not shown
        for widget in qapp.topLevelWidgets():
            if isinstance(widget, MainWindow) and widget.bridge.session is session:
                widget.background.quit()

    QTimer.singleShot(300, close)
    assert run_gui(session, is_minimised=is_minimised) == 0
    assert shown == ([True] if is_first and not is_minimised else [])


def test_another_model_leaves_the_engine_of_the_one_before(
    qtbot: QtBot, window: MainWindow, random_bundle: Path
) -> None:
    on_engine = Preferences(backend="trtllm", engine="/an/engine")
    guide = GuideDialog(on_engine, None, window, window.bridge, window.settings.tools)
    qtbot.addWidget(guide)
    assert not guide.model.device.weights_box.isEnabled()
    assert guide.preferences() == on_engine
    guide.model.models.bundle = str(random_bundle)
    assert guide.preferences().backend == "torch"
    assert guide.preferences().engine == "/an/engine"
