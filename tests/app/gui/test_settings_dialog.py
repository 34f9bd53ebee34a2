"""The settings dialog: what goes in comes out, and what cannot work is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtWidgets import QDialogButtonBox
from pytestqt.qtbot import QtBot

from app.gui.preferences import Preferences
from app.gui.settings_dialog import SettingsDialog
from app.gui.shortcuts_dialog import ShortcutsDialog
from app.gui.themes import ThemeChoice
from app.session.messages import DevicesChanged
from engine_runtime.types import Modality

DEVICES = DevicesChanged(("pulse", "USB"), ("pulse",), "pulse", "pulse")


def make(qtbot: QtBot, preferences: Preferences, devices: DevicesChanged | None = DEVICES) -> SettingsDialog:
    dialog = SettingsDialog(preferences, devices)
    qtbot.addWidget(dialog)
    return dialog


@pytest.mark.parametrize("devices", [DEVICES, None], ids=["devices", "none"])
def test_what_is_shown_is_returned(qtbot: QtBot, tmp_path: Path, devices: DevicesChanged | None) -> None:
    (tmp_path / "bundle.toml").write_text("")
    preferences = Preferences(
        theme=ThemeChoice.DARK,
        language="zh_CN",
        reply=Modality.TEXT,
        input_device="USB",
        output_device="a loudspeaker that is away",
        latency_ms=20,
        endpointing_ms=800,
        barge_in=False,
        seed=0,
        flow_steps=1,
        flow_schedule="quadratic",
        codec_dtype="float16",
        bundle=str(tmp_path),
    )
    assert make(qtbot, preferences, devices).preferences() == preferences


def test_defaults_stand_for_the_bundle(qtbot: QtBot) -> None:
    dialog = make(qtbot, Preferences())
    assert dialog.preferences() == Preferences()
    assert dialog.seed.text() == dialog.flow_steps.text() == "as the bundle says"


def test_restore_defaults(qtbot: QtBot) -> None:
    dialog = make(qtbot, Preferences(seed=3, endpointing_ms=900))
    dialog.buttons.button(QDialogButtonBox.StandardButton.RestoreDefaults).click()
    assert dialog.preferences() == Preferences()


def test_a_folder_without_a_bundle_cannot_be_chosen(qtbot: QtBot, tmp_path: Path) -> None:
    dialog = make(qtbot, Preferences())
    okay = dialog.buttons.button(QDialogButtonBox.StandardButton.Ok)
    dialog.bundle.setText(str(tmp_path))
    assert not okay.isEnabled()
    assert "bundle.toml" in dialog.warning.text()
    (tmp_path / "bundle.toml").write_text("")
    dialog.bundle.setText(f"{tmp_path}/")
    assert okay.isEnabled()
    assert dialog.warning.text() == ""


def test_every_shortcut_has_words(qtbot: QtBot) -> None:
    keys = ["Ctrl+Space", "Ctrl+M", "Esc", "F1"]
    dialog = ShortcutsDialog(keys)
    qtbot.addWidget(dialog)
    assert all(dialog._words()[key] for key in keys)
