"""The fields for device and weight format, and whether the model fits there.

In: preferences, the devices' memory and what the model takes of it. Out: the edited preferences. GUI thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import get_args

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QCheckBox

from app.gui.common.plain_text import PlainLabel
from app.gui.common.preferences import Preferences
from app.gui.settings.lookups import DeviceRoom, best_gpu
from app.gui.settings.settings_page import choice_box, choose, keep_line, size_in_words
from engine_runtime.options import WeightFormat

_CPU = "cpu"


class DeviceChoice(QObject):
    """The fields belong to the page that lays them out. Until the devices are known, only the processor and
    the chosen device are offered.

    Attributes:
        fits: whether the model fits on the chosen device, as far as that is known.
    """

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.device_box = choice_box(((self.tr("Processor"), _CPU),))
        self.weights_box = choice_box((form, form) for form in get_args(WeightFormat))
        self.saves_memory = QCheckBox(self.tr("Also compress tails, keys and values"))
        self.note = PlainLabel()
        self.note.setWordWrap(True)
        keep_line(self.note)  # until the devices are known
        self.fits = True
        self._by_engine = False
        self._rooms: dict[str, DeviceRoom] = {}
        self.device_box.currentIndexChanged.connect(self._refresh)
        self.weights_box.currentIndexChanged.connect(self._refresh)
        self.saves_memory.toggled.connect(self._refresh)
        self._refresh()

    @property
    def device(self) -> str:
        """The chosen one."""
        return str(self.device_box.currentData())

    @property
    def chosen_format(self) -> tuple[WeightFormat, bool]:
        """The chosen format, and whether the rest is compressed, too."""
        return self.weights_box.currentData(), self.saves_memory.isChecked()

    def show_preferences(self, preferences: Preferences) -> None:
        """Fill the fields."""
        if self.device_box.findData(preferences.device) < 0:
            self.device_box.addItem(preferences.device, preferences.device)
        choose(self.device_box, preferences.device)
        choose(self.weights_box, preferences.weights)
        self.saves_memory.setChecked(preferences.saves_memory)

    def edited(self, preferences: Preferences) -> Preferences:
        """`preferences` with the values of the fields."""
        weights, saves_memory = self.chosen_format
        return dataclasses.replace(
            preferences, device=self.device, weights=weights, saves_memory=saves_memory
        )

    def show_rooms(self, rooms: Sequence[DeviceRoom]) -> None:
        """The devices are known; the chosen one stays, also if it is not among them."""
        self._rooms = {room.name: room for room in rooms}
        for room in rooms:
            name = self.tr("Processor") if room.is_processor else room.name
            text = (
                self.tr("%1: %2, %3")
                .replace("%1", name)
                .replace("%3", size_in_words(room.total_bytes))
                .replace("%2", room.description)
            )
            index = self.device_box.findData(room.name)
            if index < 0:
                self.device_box.addItem(text, room.name)
            else:
                self.device_box.setItemText(index, text)
        self._refresh()

    def recommend(self) -> None:
        """Choose the GPU with the most room and the most accurate format that fits, else the processor."""
        found = best_gpu(self._rooms.values())
        if found is None:
            choose(self.device_box, _CPU)
            return
        gpu, (weights, saves_memory) = found
        choose(self.device_box, gpu.name)
        choose(self.weights_box, weights)
        self.saves_memory.setChecked(saves_memory)

    def follow_engine(self, *, uses_engine: bool) -> None:
        """Whether a TensorRT-LLM engine is the model: it sets the formats, and needs a GPU."""
        if uses_engine != self._by_engine:
            self._by_engine = uses_engine
            self._refresh()

    def _refresh(self) -> None:
        on_gpu = self.device != _CPU and not self._by_engine
        self.weights_box.setEnabled(on_gpu)
        self.saves_memory.setEnabled(on_gpu)
        room = self._rooms.get(self.device)
        if self._by_engine:
            self.fits = True
            self._say(self._of_engine(), is_error=False)
        elif room is None:
            is_missing = bool(self._rooms)
            self.fits = not is_missing
            self._say(self.tr("This device is not available.") if is_missing else "", is_error=is_missing)
        else:
            self._say_room(room)

    def _of_engine(self) -> str:
        if self.device == _CPU:
            return self.tr(
                "Set by the TensorRT-LLM engine: weights, keys and values; and the first GPU as device."
            )
        return self.tr("Set by the TensorRT-LLM engine: weights, keys and values.")

    def _say_room(self, room: DeviceRoom) -> None:
        need = room.needs["native", False] if room.is_processor else room.needs[self.chosen_format]
        available = room.total_bytes if room.is_processor else room.free_bytes
        self.fits = fits = need <= available
        text = (
            self.tr("The model needs about %1 of %2 of memory.")
            if fits
            else self.tr(
                "The model needs about %1, but there are only %2 of memory. Choose a smaller model "
                "or weight format."
            )
        )
        text = text.replace("%1", size_in_words(need)).replace("%2", size_in_words(available))
        self._say(text, is_error=not fits)

    def _say(self, text: str, *, is_error: bool) -> None:
        self.note.setProperty("role", "banner-title" if is_error else "small")
        self.note.style().polish(self.note)
        self.note.setText(text)
        self.note.setVisible(bool(text))
