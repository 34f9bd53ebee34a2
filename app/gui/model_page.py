"""The page of the settings dialog about the model: bundle, voice, and how the codec runs.

In: preferences. Out: the edited preferences; bundle and voice are checked while they are edited. GUI thread.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import get_args

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QCheckBox, QFileDialog

from app import paths
from app.audio.wav import read_beginning
from app.gui.error_texts import in_words
from app.gui.file_field import FileField
from app.gui.preferences import FLOW_STEPS_RANGE, Preferences
from app.gui.settings_page import SettingsPage, choice_box, choose, spin_box
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.codec.voice.recording import SEARCHED_S, VoiceSource, cut_speech
from engine_runtime.errors import MossVoiceError
from engine_runtime.options import Dtype, FlowSchedule


class ModelPage(SettingsPage):
    """The flow steps show "as the bundle says" at their lowest value, which means None.

    Signals:
        files_checked: bundle or voice were changed and checked; see `is_usable`.
    """

    files_checked = Signal()

    def __init__(self) -> None:
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
        self.flow_steps = spin_box(
            FLOW_STEPS_RANGE[0] - 1, FLOW_STEPS_RANGE[1], special=self.tr("as the bundle says")
        )
        self.schedule_box = choice_box((schedule, schedule) for schedule in get_args(FlowSchedule))
        self.codec_box = choice_box((("auto", None), *((dtype, dtype) for dtype in get_args(Dtype))))
        self.exact_encoding = QCheckBox(self.tr("Encode my speech again at the end of my turn"))
        super().__init__(
            (self.tr("Model &bundle"), self.bundle, ""),
            (
                self.tr("&Voice"),
                self.voice,
                self.tr(
                    "A WAV file with at least 3.2 s of speech, of which the first 6 s are used. For "
                    "bundles whose voice can be chosen."
                ),
            ),
            (self.tr("&Flow steps"), self.flow_steps, self.tr("More steps sound cleaner and take longer.")),
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
        )
        self.bundle.changed.connect(self._check_files)
        self.voice.changed.connect(self._check_files)

    @property
    def is_usable(self) -> bool:
        """Whether bundle and voice would load."""
        return self.bundle.is_usable and self.voice.is_usable

    def show_preferences(self, preferences: Preferences) -> None:
        """Fill the page."""
        self.bundle.path, self.voice.path = preferences.bundle, preferences.voice
        steps = preferences.flow_steps
        self.flow_steps.setValue(self.flow_steps.minimum() if steps is None else steps)
        choose(self.schedule_box, preferences.flow_schedule)
        choose(self.codec_box, preferences.codec_dtype)
        self.exact_encoding.setChecked(preferences.exact_encoding)

    def edited(self, preferences: Preferences) -> Preferences:
        """`preferences` with the values of the page."""
        steps = self.flow_steps.value()
        return dataclasses.replace(
            preferences,
            bundle=self.bundle.path,
            voice=self.voice.path,
            flow_steps=None if steps == self.flow_steps.minimum() else steps,
            flow_schedule=self.schedule_box.currentData(),
            codec_dtype=self.codec_box.currentData(),
            exact_encoding=self.exact_encoding.isChecked(),
        )

    def _browse_bundles(self, start: str) -> str:
        return QFileDialog.getExistingDirectory(self, self.tr("Folder of the model bundle"), start)

    def _browse_recordings(self, start: str) -> str:
        title, kinds = self.tr("Recording of the voice to speak with"), self.tr("Recordings (*.wav)")
        return QFileDialog.getOpenFileName(self, title, start, kinds)[0]

    def _check_files(self) -> None:
        """Say what is wrong with bundle and voice."""
        chosen = paths.user_path(self.bundle.path) if self.bundle.path else paths.default_bundle()
        has_bundle = not self.bundle.path or os.path.isfile(chosen / "bundle.toml")  # noqa: PTH113
        self.bundle.say(
            "" if has_bundle else self.tr("This folder holds no bundle.toml. Choose another one."),
            is_usable=has_bundle,
        )
        self._check_voice(chosen)
        self.files_checked.emit()

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
