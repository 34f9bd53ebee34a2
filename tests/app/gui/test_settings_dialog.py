"""The settings dialog: values are preserved, and invalid ones are rejected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PySide6.QtWidgets import QApplication, QDialogButtonBox, QFileDialog, QLabel
from pytestqt.qtbot import QtBot

from app import paths
from app.audio.wav import WavWriter
from app.dialog import smart_turn
from app.gui.preferences import Preferences
from app.gui.settings_dialog import SettingsDialog
from app.gui.shortcuts_dialog import ShortcutsDialog
from app.gui.themes import ThemeChoice
from app.gui.translation import Translation
from app.session.events import DevicesChanged
from engine_runtime.bundle.released.assembly import assemble
from engine_runtime.bundle.released.layout import find_released, locate
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
        eagerness="off",
        speculate="on",
        input_mode="push",
        hotkey="Ctrl+Alt+Space",
        interruption="half_second",
        echo_cancellation="on",
        noise_suppression=True,
        gain_control=True,
        seed=0,
        flow_steps=1,
        flow_schedule="quadratic",
        codec_dtype="float16",
        exact_encoding=True,
        bundle=str(tmp_path),
        voice=str(tmp_path / "me.wav"),
        closes_to_tray=True,
        starts_minimised=True,
    )
    assert make(qtbot, preferences, devices).preferences() == preferences


def test_defaults_stand_for_the_bundle(qtbot: QtBot) -> None:
    dialog = make(qtbot, Preferences())
    assert dialog.preferences() == Preferences()
    assert dialog.seed.text() == dialog.flow_steps.text() == "as the bundle says"


def test_exact_encoding_is_explained_in_both_languages(qtbot: QtBot, qapp: QApplication) -> None:
    translator = Translation(qapp, paths.assets_dir() / "translations")
    for language, text, hint in (
        ("en", "Encode my speech once more when my turn ends", "replies start a little later"),
        ("zh_CN", "我说完后重新编码我的语音", "回答稍晚"),
    ):
        translator.use(language)
        try:
            box = make(qtbot, Preferences()).exact_encoding
        finally:
            translator.remove()
        assert box.text() == text
        assert hint in box.accessibleDescription()


def test_restore_defaults(qtbot: QtBot) -> None:
    dialog = make(qtbot, Preferences(seed=3, endpointing_ms=900))
    dialog.buttons.button(QDialogButtonBox.StandardButton.RestoreDefaults).click()
    assert dialog.preferences() == Preferences()


def test_a_folder_without_a_bundle_cannot_be_chosen(qtbot: QtBot, tmp_path: Path) -> None:
    dialog = make(qtbot, Preferences())
    okay = dialog.buttons.button(QDialogButtonBox.StandardButton.Ok)
    dialog.bundle.path = str(tmp_path)
    assert not okay.isEnabled()
    assert "bundle.toml" in dialog.bundle.note.text()
    (tmp_path / "bundle.toml").write_text("")
    dialog.bundle.path = f"{tmp_path}/"
    assert okay.isEnabled()
    assert dialog.bundle.note.text() == ""


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
    dialog = make(qtbot, Preferences(bundle=str(voiced)))
    file = recording(tmp_path / "me.wav", 4.7)
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: (file, ""))
    dialog.voice.button.click()
    assert dialog.preferences().voice == file
    assert dialog.voice.note.text() == "4.4 s of its speech are used."
    assert dialog.buttons.button(QDialogButtonBox.StandardButton.Ok).isEnabled()
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: ("", ""))  # cancelled
    dialog.voice.button.click()
    assert dialog.preferences().voice == file


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "level", "reason"),
    [
        (2.0, 0.1, "holds 2.0 s of speech, and at least 3.2 s are needed. Choose a longer one."),
        (4.0, 0.0, "The recording of the voice is silent. Record it again, or choose another one."),
    ],
)
def test_a_recording_that_is_unusable_cannot_be_chosen(
    qtbot: QtBot, voiced: Path, tmp_path: Path, seconds: float, level: float, reason: str
) -> None:
    dialog = make(qtbot, Preferences(bundle=str(voiced)))
    okay = dialog.buttons.button(QDialogButtonBox.StandardButton.Ok)
    dialog.voice.path = recording(tmp_path / "me.wav", seconds, level)
    assert dialog.voice.note.text().endswith(reason)
    assert not okay.isEnabled()
    dialog.voice.path = ""
    assert okay.isEnabled()
    dialog.voice.path = str(tmp_path / "nowhere.wav")
    assert "There is no file" in dialog.voice.note.text()
    assert not okay.isEnabled()


def test_a_bundle_with_one_voice_takes_no_other(qtbot: QtBot, random_bundle: Path, tmp_path: Path) -> None:
    dialog = make(qtbot, Preferences(bundle=str(random_bundle)))
    dialog.voice.path = recording(tmp_path / "me.wav", 4.0)
    assert "has no speaker encoder" in dialog.voice.note.text()
    assert not dialog.buttons.button(QDialogButtonBox.StandardButton.Ok).isEnabled()


def test_a_voice_that_is_kept_but_gone_is_reported_when_the_dialog_opens(
    qtbot: QtBot, tmp_path: Path
) -> None:
    dialog = make(qtbot, Preferences(voice=str(tmp_path / "gone.wav")))
    assert "There is no file" in dialog.voice.note.text()
    dialog.buttons.button(QDialogButtonBox.StandardButton.RestoreDefaults).click()
    assert dialog.buttons.button(QDialogButtonBox.StandardButton.Ok).isEnabled()


def test_text_that_wraps_gets_the_height_that_it_takes(qtbot: QtBot) -> None:
    dialog = make(qtbot, Preferences())
    dialog.voice.say("word " * 20, is_usable=False)
    dialog.show()
    width = dialog.tabs.currentWidget().width()
    for page in map(dialog.tabs.widget, range(dialog.tabs.count())):
        assert page.minimumHeight() == max(0, page.heightForWidth(width))
        dialog.tabs.setCurrentWidget(page)
        QApplication.processEvents()
        for text in filter(QLabel.wordWrap, page.findChildren(QLabel)):
            assert not text.isVisible() or text.height() == text.heightForWidth(text.width())


def test_every_shortcut_has_words(qtbot: QtBot) -> None:
    keys = ["Ctrl+Space", "Ctrl+M", "Ctrl+I", "Esc", "F1"]
    dialog = ShortcutsDialog(keys, [])
    qtbot.addWidget(dialog)
    assert all(dialog._words()[key] for key in keys)


@pytest.mark.parametrize("name", ["~nosuch/x", "~nosuch", "x" * 5000, "a\0b"])
def test_names_that_nothing_has_are_refused_in_words(qtbot: QtBot, name: str) -> None:
    dialog = make(qtbot, Preferences(bundle=name))
    okay = dialog.buttons.button(QDialogButtonBox.StandardButton.Ok)
    assert "no bundle.toml" in dialog.bundle.note.text()
    assert not okay.isEnabled()
    dialog.bundle.path, dialog.voice.path = "", name
    assert dialog.voice.note.text()
    assert not okay.isEnabled()


def test_without_smart_turn_the_dialog_says_so(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    def helps(dialog: SettingsDialog) -> str:
        return " ".join(label.text() for label in dialog.findChildren(QLabel))

    assert "sounds finished" in helps(make(qtbot, Preferences()))
    monkeypatch.setattr(smart_turn, "find_model", lambda package, file: None)
    assert "Smart Turn is not installed" in helps(make(qtbot, Preferences()))
