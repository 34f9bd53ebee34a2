"""The settings dialog: edits a `Preferences` value; the caller applies and saves the result."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import get_args

from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QDialog,
    QDialogButtonBox,
    QFileDialog,
    QLabel,
    QSpinBox,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from app import paths
from app.audio.wav import read_beginning
from app.dialog.smart_turn import installed_model
from app.gui.bridge import SessionBridge
from app.gui.device_box import DeviceBox
from app.gui.error_texts import in_words
from app.gui.file_field import FileField
from app.gui.keeping_page import KeepingPage
from app.gui.preferences import (
    ENDPOINTING_RANGE_MS,
    FLOW_STEPS_RANGE,
    LARGEST_SEED,
    LATENCIES_MS,
    Preferences,
)
from app.gui.settings_page import SettingsPage
from app.gui.sound_check_page import SoundCheckPage
from app.gui.talk_page import TalkPage
from app.gui.themes import ThemeChoice
from app.session.events import DevicesChanged
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.codec.voice.recording import SEARCHED_S, VoiceSource, cut_speech
from engine_runtime.errors import MossVoiceError
from engine_runtime.options import Dtype, FlowSchedule
from engine_runtime.types import Modality


class SettingsDialog(QDialog):
    """All settings on six pages; `bridge` is for tests of the sound.

    Spin boxes for seed and flow steps show "as the bundle says" at their lowest value, which means None.
    """

    def __init__(
        self,
        preferences: Preferences,
        devices: DevicesChanged | None,
        parent: QWidget | None = None,
        bridge: SessionBridge | None = None,
    ) -> None:
        super().__init__(parent)
        self.setWindowTitle(self.tr("Settings"))
        self.setMinimumWidth(660)
        self.input_box, self.output_box = DeviceBox(), DeviceBox()
        self._given = preferences
        self._devices = devices or DevicesChanged((), (), "", "")
        self.input_box.set_default(self.tr("Default microphone"))
        self.output_box.set_default(self.tr("Default loudspeaker"))
        self.latency_box, self.reply_box = QComboBox(), QComboBox()
        self.theme_box, self.language_box = QComboBox(), QComboBox()
        self.endpointing = self._spin_box(*ENDPOINTING_RANGE_MS, step=20, suffix=self.tr(" ms"))
        self.eagerness_box, self.speculation_box = QComboBox(), QComboBox()
        self.interruption_box = QComboBox()
        self.echo_box = QComboBox()
        self.talk = TalkPage(parent)
        self.sound_check = SoundCheckPage(bridge)
        self.keeping = KeepingPage()
        self.closes_to_tray = QCheckBox(self.tr("Keep running in the tray when the window is closed"))
        self.starts_minimised = QCheckBox(self.tr("Start minimised, in the tray where there is one"))
        self.noise_suppression = QCheckBox(self.tr("Reduce steady noise"))
        self.gain_control = QCheckBox(self.tr("Bring speech to one level"))
        self.seed = self._spin_box(-1, LARGEST_SEED, special=self.tr("as the bundle says"))
        self.flow_steps = self._spin_box(
            FLOW_STEPS_RANGE[0] - 1, FLOW_STEPS_RANGE[1], special=self.tr("as the bundle says")
        )
        self.schedule_box, self.codec_box = QComboBox(), QComboBox()
        self.exact_encoding = QCheckBox(self.tr("Encode my speech once more when my turn ends"))
        self.bundle = FileField(
            self.tr("Folder of the model bundle"),
            self.tr("The bundle that came with the program"),
            self._browse_bundles,
        )
        self.voice = FileField(
            self.tr("Recording of the voice to speak with"),
            self.tr("The voice of the bundle"),
            self._browse_recordings,
        )
        self._fill_boxes()
        self.buttons = QDialogButtonBox(
            QDialogButtonBox.StandardButton.Ok
            | QDialogButtonBox.StandardButton.Cancel
            | QDialogButtonBox.StandardButton.RestoreDefaults
        )
        self.buttons.accepted.connect(self.accept)
        self.buttons.rejected.connect(self.reject)
        restore = self.buttons.button(QDialogButtonBox.StandardButton.RestoreDefaults)
        restore.clicked.connect(lambda: self.show_preferences(Preferences()))
        self._lay_out()
        self.show_preferences(preferences)
        self._check_files()
        self.bundle.changed.connect(self._check_files)
        self.voice.changed.connect(self._check_files)

    def show_preferences(self, preferences: Preferences) -> None:
        """Fill the dialog."""
        known = self._devices
        self.input_box.show_devices(known.inputs, known.descriptions, preferences.input_device)
        self.output_box.show_devices(known.outputs, known.descriptions, preferences.output_device)
        for box, value in (
            (self.latency_box, preferences.latency_ms),
            (self.reply_box, preferences.reply),
            (self.echo_box, preferences.echo_cancellation),
            (self.eagerness_box, preferences.eagerness),
            (self.speculation_box, preferences.speculate),
            (self.interruption_box, preferences.interruption),
            (self.theme_box, preferences.theme),
            (self.language_box, preferences.language),
            (self.schedule_box, preferences.flow_schedule),
            (self.codec_box, preferences.codec_dtype),
        ):
            box.setCurrentIndex(max(0, box.findData(value)))
        self.endpointing.setValue(preferences.endpointing_ms)
        self.noise_suppression.setChecked(preferences.noise_suppression)
        self.gain_control.setChecked(preferences.gain_control)
        self.seed.setValue(-1 if preferences.seed is None else preferences.seed)
        self.flow_steps.setValue(
            self.flow_steps.minimum() if preferences.flow_steps is None else preferences.flow_steps
        )
        self.exact_encoding.setChecked(preferences.exact_encoding)
        self.sound_check.show_choice(preferences.sensitivity)
        self.keeping.show_choice(preferences.keep)
        self.talk.show_choices(preferences.input_mode, preferences.hotkey)
        self.closes_to_tray.setChecked(preferences.closes_to_tray)
        self.starts_minimised.setChecked(preferences.starts_minimised)
        self.bundle.path, self.voice.path = preferences.bundle, preferences.voice

    def preferences(self) -> Preferences:
        """The preferences in the dialog."""
        steps, seed = self.flow_steps.value(), self.seed.value()
        return dataclasses.replace(
            self._given,
            theme=ThemeChoice(self.theme_box.currentData()),
            language=str(self.language_box.currentData()),
            reply=Modality(self.reply_box.currentData()),
            input_device=str(self.input_box.currentData()),
            output_device=str(self.output_box.currentData()),
            latency_ms=int(self.latency_box.currentData()),
            endpointing_ms=self.endpointing.value(),
            eagerness=self.eagerness_box.currentData(),
            speculate=self.speculation_box.currentData(),
            keep=self.keeping.keep,
            input_mode=self.talk.input_mode,
            hotkey=self.talk.hotkey,
            sensitivity=self.sound_check.sensitivity,
            interruption=self.interruption_box.currentData(),
            echo_cancellation=self.echo_box.currentData(),
            noise_suppression=self.noise_suppression.isChecked(),
            gain_control=self.gain_control.isChecked(),
            seed=None if seed == self.seed.minimum() else seed,
            flow_steps=None if steps == self.flow_steps.minimum() else steps,
            flow_schedule=self.schedule_box.currentData(),
            codec_dtype=self.codec_box.currentData(),
            exact_encoding=self.exact_encoding.isChecked(),
            bundle=self.bundle.path,
            voice=self.voice.path,
            closes_to_tray=self.closes_to_tray.isChecked(),
            starts_minimised=self.starts_minimised.isChecked(),
        )

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Set the height of the pages to that of their text at this width."""
        super().resizeEvent(event)
        self._fit_pages()

    def showEvent(self, event: QShowEvent) -> None:
        """The same, now that the pages have got their width."""
        super().showEvent(event)
        self._fit_pages()

    def _fill_boxes(self) -> None:
        for latency in LATENCIES_MS:
            self.latency_box.addItem(self.tr("%1 ms").replace("%1", str(latency)), latency)
        for box in (self.echo_box, self.speculation_box):
            box.addItem(self.tr("Automatic"), "auto")
            box.addItem(self.tr("On"), "on")
            box.addItem(self.tr("Off"), "off")
        self.reply_box.addItem(self.tr("Speech"), Modality.SPEECH)
        self.reply_box.addItem(self.tr("Text"), Modality.TEXT)
        self.eagerness_box.addItem(self.tr("Patient"), "patient")
        self.eagerness_box.addItem(self.tr("Balanced"), "balanced")
        self.eagerness_box.addItem(self.tr("Eager"), "eager")
        self.eagerness_box.addItem(self.tr("Silence alone"), "off")
        self.interruption_box.addItem(self.tr("As soon as I speak"), "at_once")
        self.interruption_box.addItem(self.tr("After half a second of speech"), "half_second")
        self.interruption_box.addItem(self.tr("After a second of speech"), "second")
        self.interruption_box.addItem(self.tr("Never"), "never")
        self.theme_box.addItem(self.tr("As the desktop"), ThemeChoice.SYSTEM)
        self.theme_box.addItem(self.tr("Light"), ThemeChoice.LIGHT)
        self.theme_box.addItem(self.tr("Dark"), ThemeChoice.DARK)
        self.language_box.addItem(self.tr("As the desktop"), "system")
        self.language_box.addItem("English", "en")
        self.language_box.addItem("简体中文", "zh_CN")
        for schedule in get_args(FlowSchedule):
            self.schedule_box.addItem(schedule, schedule)
        self.codec_box.addItem("auto", None)
        for dtype in get_args(Dtype):
            self.codec_box.addItem(dtype, dtype)

    def _lay_out(self) -> None:
        tabs = QTabWidget()
        tabs.addTab(
            SettingsPage(
                (self.tr("&Microphone"), self.input_box, ""),
                (self.tr("&Loudspeaker"), self.output_box, ""),
                (
                    self.tr("Device l&atency"),
                    self.latency_box,
                    self.tr("Lower is faster; raise it if the sound stutters."),
                ),
                (
                    self.tr("&Echo cancellation"),
                    self.echo_box,
                    self.tr(
                        "Takes the assistant's voice out of the microphone, so that a reply does not "
                        "interrupt itself. Automatic turns it off while no echo is measured, as with "
                        "headphones."
                    ),
                ),
                (
                    self.tr("&Noise suppression"),
                    self.noise_suppression,
                    self.tr("For fans and traffic, about 12 dB. The voice changes a little."),
                ),
                (
                    self.tr("&Gain control"),
                    self.gain_control,
                    self.tr("For a microphone that is too quiet or far away."),
                ),
            ),
            self.tr("Sound"),
        )
        tabs.addTab(
            SettingsPage(
                (
                    self.tr("End of t&urn"),
                    self.eagerness_box,
                    self._eagerness_help(),
                ),
                (
                    self.tr("Early re&plies"),
                    self.speculation_box,
                    self.tr(
                        "Makes the reply at your first pause and holds it until your turn is sure, so that "
                        "it sounds at once. Costs computing time where you go on. Automatic turns it off "
                        "while the engine does not keep up."
                    ),
                ),
                (
                    self.tr("&Endpointing"),
                    self.endpointing,
                    self.tr(
                        "Silence that ends your turn where it is unclear whether you have finished, or where "
                        "silence alone decides."
                    ),
                ),
                (
                    self.tr("Barge-in"),
                    self.interruption_box,
                    self.tr(
                        'When my voice stops a reply. After half a second, a short "mm-hm" or a cough '
                        "does not. With open loudspeakers this needs echo cancellation."
                    ),
                ),
                (self.tr("&Reply as"), self.reply_box, ""),
                (self.tr("&Seed"), self.seed, self.tr("The same conversation gets the same replies.")),
            ),
            self.tr("Conversation"),
        )
        tabs.addTab(self.sound_check, self.tr("Sound check"))
        tabs.addTab(self.talk, self.tr("Talking"))
        tabs.addTab(self.keeping, self.tr("Privacy"))
        tabs.addTab(
            SettingsPage(
                (self.tr("Model &bundle"), self.bundle, ""),
                (
                    self.tr("&Voice"),
                    self.voice,
                    self.tr(
                        "A WAV file with at least 3.2 s of speech, of which the first 6 s are used. For "
                        "bundles whose voice can be chosen."
                    ),
                ),
                (
                    self.tr("&Flow steps"),
                    self.flow_steps,
                    self.tr("More steps sound cleaner and take longer."),
                ),
                (
                    self.tr("Flow sc&hedule"),
                    self.schedule_box,
                    self.tr("Time schedule of the steps; cosine is the reference."),
                ),
                (self.tr("&Codec precision"), self.codec_box, self.tr("Half precision saves GPU memory.")),
                (
                    self.tr("E&xact encoding"),
                    self.exact_encoding,
                    self.tr(
                        "As the model was trained; replies start a little later. "
                        "It changes nothing with the bundle that came with the program."
                    ),
                ),
                ("", QLabel(self.tr("These settings apply at the next start.")), ""),
            ),
            self.tr("Model"),
        )
        tabs.addTab(
            SettingsPage(
                (self.tr("&Theme"), self.theme_box, ""),
                (self.tr("L&anguage"), self.language_box, ""),
                ("", self.closes_to_tray, ""),
                ("", self.starts_minimised, ""),
            ),
            self.tr("Appearance"),
        )
        self.tabs = tabs
        layout = QVBoxLayout(self)
        layout.setContentsMargins(16, 14, 16, 14)
        layout.setSpacing(12)
        layout.addWidget(tabs, 1)
        layout.addWidget(self.buttons)

    def _eagerness_help(self) -> str:
        if installed_model() is None:
            return self.tr(
                "Smart Turn is not installed, so silence alone ends your turn. moss-voice doctor says how to "
                "install it."
            )
        return self.tr(
            "A question that sounds finished is answered after a quarter of a second; a pause in "
            "mid-sentence is waited for. Eager answers sooner, patient cuts you off less often."
        )

    @staticmethod
    def _spin_box(low: int, high: int, step: int = 1, suffix: str = "", special: str = "") -> QSpinBox:
        box = QSpinBox()
        box.setRange(low, high)
        box.setSingleStep(step)
        box.setSuffix(suffix)
        box.setSpecialValueText(special)
        return box

    def _browse_bundles(self, start: str) -> str:
        return QFileDialog.getExistingDirectory(self, self.tr("Folder of the model bundle"), start)

    def _browse_recordings(self, start: str) -> str:
        title, kinds = self.tr("Recording of the voice to speak with"), self.tr("Recordings (*.wav)")
        return QFileDialog.getOpenFileName(self, title, start, kinds)[0]

    def _check_files(self) -> None:
        """Say what is wrong with bundle and voice; nothing is accepted that would not load."""
        chosen = paths.user_path(self.bundle.path) if self.bundle.path else paths.default_bundle()
        has_bundle = not self.bundle.path or os.path.isfile(chosen / "bundle.toml")  # noqa: PTH113
        self.bundle.say(
            "" if has_bundle else self.tr("This folder holds no bundle.toml. Choose another one."),
            is_usable=has_bundle,
        )
        self._check_voice(chosen)
        self._fit_pages()
        okay = self.buttons.button(QDialogButtonBox.StandardButton.Ok)
        okay.setEnabled(self.bundle.is_usable and self.voice.is_usable)

    def _fit_pages(self) -> None:
        # NOTE: Qt ignores height-for-width in the pages of tabs, and cuts off wrapped text. Pages that are
        # not on show have not got their width yet.
        width = self.tabs.currentWidget().width()
        for page in filter(None, map(self.tabs.widget, range(self.tabs.count()))):
            page.setMinimumHeight(max(0, page.heightForWidth(width)))

    def _check_voice(self, bundle: Path) -> None:
        if not self.voice.path or not self.bundle.is_usable:
            self.voice.say("", is_usable=True)
            return
        try:
            source = VoiceSource(*read_beginning(paths.user_path(self.voice.path), SEARCHED_S))
            speech = cut_speech(source, Bundle.open(bundle, verify="none"))
        except MossVoiceError as error:
            words = [in_words(part) for part in (error.what_is_wrong, error.what_to_do) if part]
            self.voice.say(" ".join(words), is_usable=False)
        else:
            seconds = f"{speech.size / source.sample_rate:.1f}"
            self.voice.say(self.tr("%1 s of its speech are used.").replace("%1", seconds), is_usable=True)
