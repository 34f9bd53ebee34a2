"""The page of the settings dialog about the codec: how speech is encoded and made.

In: preferences. Out: the edited preferences. GUI thread.
"""

from __future__ import annotations

import dataclasses
from typing import get_args

from PySide6.QtWidgets import QCheckBox

from app.gui.common.plain_text import PlainLabel
from app.gui.common.preferences import FLOW_STEPS_RANGE, Preferences
from app.gui.settings.settings_page import SettingsPage, choice_box, choose, spin_box
from engine_runtime.options import Dtype, FlowSchedule


class CodecPage(SettingsPage):
    """The flow steps show "as the bundle says" at their lowest value, which means None."""

    def __init__(self) -> None:
        self.flow_steps = spin_box(
            FLOW_STEPS_RANGE[0] - 1, FLOW_STEPS_RANGE[1], special=self.tr("as the bundle says")
        )
        self.schedule_box = choice_box((schedule, schedule) for schedule in get_args(FlowSchedule))
        self.codec_box = choice_box((("auto", None), *((dtype, dtype) for dtype in get_args(Dtype))))
        self.trt_codec = QCheckBox(self.tr("Run the codec on TensorRT"))
        self.exact_encoding = QCheckBox(self.tr("Encode my speech again at the end of my turn"))
        self.note = PlainLabel()
        self.note.setProperty("role", "small")
        super().__init__(
            (
                self.tr("&Flow steps"),
                self.flow_steps,
                self.tr("More steps sound cleaner and take longer. They apply from the next turn on."),
            ),
            (
                self.tr("Flow sc&hedule"),
                self.schedule_box,
                self.tr("Time schedule of the steps; cosine is the reference."),
            ),
            (self.tr("&Codec precision"), self.codec_box, self.tr("Half precision saves GPU memory.")),
            (
                self.tr("&TensorRT"),
                self.trt_codec,
                self.tr(
                    "Flow, vocoder and speech encoder on an NVIDIA GPU, in float32 or float16. Their engines "
                    "are built at the first start, which takes minutes; PyTorch is used where that fails."
                ),
            ),
            ("", self.note, ""),
            (
                self.tr("E&xact encoding"),
                self.exact_encoding,
                self.tr(
                    "As the model was trained; replies start a little later. "
                    "It changes nothing with the bundle that came with the program."
                ),
            ),
        )
        self.trt_codec.toggled.connect(self._check)
        self.codec_box.currentIndexChanged.connect(self._check)

    def show_preferences(self, preferences: Preferences) -> None:
        """Fill the page."""
        steps = preferences.flow_steps
        self.flow_steps.setValue(self.flow_steps.minimum() if steps is None else steps)
        choose(self.schedule_box, preferences.flow_schedule)
        choose(self.codec_box, preferences.codec_dtype)
        self.trt_codec.setChecked(preferences.trt_codec)
        self.exact_encoding.setChecked(preferences.exact_encoding)
        self._check()

    def edited(self, preferences: Preferences) -> Preferences:
        """`preferences` with the values of the page."""
        steps = self.flow_steps.value()
        return dataclasses.replace(
            preferences,
            flow_steps=None if steps == self.flow_steps.minimum() else steps,
            flow_schedule=self.schedule_box.currentData(),
            codec_dtype=self.codec_box.currentData(),
            exact_encoding=self.exact_encoding.isChecked(),
            trt_codec=self.trt_codec.isChecked(),
        )

    def _check(self) -> None:
        """Say that a precision excludes TensorRT."""
        is_refused = self.trt_codec.isChecked() and self.codec_box.currentData() == "bfloat16"
        self.note.setText(self.tr("TensorRT does not run the codec in bfloat16: PyTorch does."))
        self.note.setVisible(is_refused)
