"""The settings dialog: values are preserved, and invalid ones are rejected."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication, QDialogButtonBox, QLabel
from pytestqt.qtbot import QtBot

from app.gui.common.preferences import Preferences
from app.gui.common.themes import ThemeChoice
from app.gui.settings.settings_dialog import SettingsDialog
from app.gui.window.shortcuts import ShortcutsDialog
from app.session.events import DevicesChanged
from engine_runtime.setting import settings
from engine_runtime.types import Modality
from tests.tools.widgets import pages_of

DEVICES = DevicesChanged(("pulse", "USB"), ("pulse",), "pulse", "pulse")


def make(qtbot: QtBot, preferences: Preferences, devices: DevicesChanged | None = DEVICES) -> SettingsDialog:
    dialog = SettingsDialog(preferences, devices)
    qtbot.addWidget(dialog)
    return dialog


def test_every_value_of_a_preference_can_be_chosen(qtbot: QtBot) -> None:
    dialog = make(qtbot, Preferences())
    elsewhere = {"volume", "latency_panel", "latency_window"}
    for name, known in settings(Preferences).items():
        values = known.choices or ((True, False) if known.kind is bool else (known.least, known.most))
        for value in () if name in elsewhere or known.kind is str else values:
            wanted = dataclasses.replace(Preferences(engine="/an/engine"), **{name: value})
            dialog.show_preferences(wanted)
            assert dialog.preferences() == wanted, name


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
        eagerness="off",
        speculate="on",
        input_mode="push",
        hotkey="Ctrl+Alt+Space",
        interruption="half_second",
        overlap="off",
        echo_cancellation="on",
        echo_library="livekit",
        noise_suppression=True,
        gain_control=True,
        ignores_bystanders=False,
        seed=0,
        flow_steps=1,
        flow_schedule="quadratic",
        codec_dtype="float16",
        exact_encoding=True,
        backend="trtllm",
        engine=str(tmp_path),
        engine_python=str(tmp_path / "python"),
        trt_codec=True,
        bundle=str(tmp_path),
        voice=str(tmp_path / "me.wav"),
        vocoder=str(tmp_path / "vocoder.safetensors"),
        closes_to_tray=True,
        starts_minimised=True,
    )
    assert make(qtbot, preferences, devices).preferences() == preferences


def test_restore_defaults(qtbot: QtBot) -> None:
    dialog = make(qtbot, Preferences(seed=3, endpointing_ms=900))
    dialog.buttons.button(QDialogButtonBox.StandardButton.RestoreDefaults).click()
    assert dialog.preferences() == Preferences()


def test_files_that_would_not_load_cannot_be_accepted(qtbot: QtBot, tmp_path: Path) -> None:
    dialog = make(qtbot, Preferences(voice=str(tmp_path / "gone.wav")))
    okay = dialog.buttons.button(QDialogButtonBox.StandardButton.Ok)
    assert "There is no file" in dialog.model.voice.note.text()
    assert not okay.isEnabled()
    dialog.buttons.button(QDialogButtonBox.StandardButton.RestoreDefaults).click()
    assert okay.isEnabled()
    dialog.model.models.other_choice.setChecked(True)
    assert okay.isEnabled()
    dialog.model.bundle.path = str(tmp_path)
    assert not okay.isEnabled()


@pytest.mark.slow
def test_text_that_wraps_gets_the_height_that_it_takes(qtbot: QtBot) -> None:
    dialog = make(qtbot, Preferences())
    dialog.model.voice.show_note("word " * 20, is_usable=False)
    dialog.show()
    pages = pages_of(dialog.tabs)
    width = pages[dialog.tabs.currentIndex()].width()
    for page in pages:
        assert page.minimumHeight() == max(0, page.heightForWidth(width))
        dialog.tabs.setCurrentWidget(page)
        QApplication.processEvents()
        for text in filter(QLabel.wordWrap, page.findChildren(QLabel)):
            assert not text.isVisible() or text.height() == text.heightForWidth(text.width())


def test_every_shortcut_has_words(qtbot: QtBot) -> None:
    keys = ["Ctrl+Space", "Ctrl+M", "Ctrl+I", "Esc", "F1"]
    dialog = ShortcutsDialog(keys, {})
    qtbot.addWidget(dialog)
    texts = [label.text() for label in dialog.findChildren(QLabel)]
    assert texts[::2] == keys
    assert all(texts[1::2])
    assert "Hold to talk" not in texts, "what a key without words would get"
