"""The page about sensitivity and sound checks."""

from __future__ import annotations

import dataclasses

import pytest
from pytestqt.qtbot import QtBot

from app.gui.common.preferences import SENSITIVITY, Preferences
from app.gui.settings.settings_dialog import SettingsDialog
from app.gui.window.main_window import MainWindow
from app.session.events import Levels
from tests.doubles.scripted_session import ScriptedSession


@pytest.mark.slow
def test_the_level_is_shown_against_the_threshold(
    qtbot: QtBot, window: MainWindow, session: ScriptedSession
) -> None:
    dialog = SettingsDialog(Preferences(sensitivity="low"), None, window, window.bridge)
    qtbot.addWidget(dialog)
    page = dialog.sound_check
    assert page.tests.bar.threshold == SENSITIVITY["low"][0]
    page.sensitivity_box.setCurrentIndex(page.sensitivity_box.findData("high"))
    assert page.tests.bar.threshold == SENSITIVITY["high"][0]
    assert dialog.preferences().sensitivity == "high"
    session.feed(Levels(-20.0, -120.0, 0.42))
    window.bridge.poll()
    assert page.tests.bar.probability == 0.42
    assert page.tests.bar.accessibleDescription() == "42%"


def test_sensitivity_is_a_pair_of_thresholds() -> None:
    for sensitivity, (start, end) in SENSITIVITY.items():
        turns = dataclasses.replace(Preferences(), sensitivity=sensitivity).session_settings().turn_taking
        assert (turns.start_threshold, turns.end_threshold) == (start, end)
    starts = [SENSITIVITY[name][0] for name in ("high", "normal", "low")]
    assert starts == sorted(starts)
