"""The guide of the first start: sound devices with a level check, model, device and weight format, a summary.

In: preferences, the sound devices that exist, the models, the memory of the devices. Out: the edited
preferences; the chosen sound devices at once. GUI thread.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from functools import reduce

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QDialog, QHBoxLayout, QPushButton, QStackedWidget, QVBoxLayout, QWidget

from app.gui.common.bridge import SessionBridge
from app.gui.common.destination import server_in_words
from app.gui.common.device_box import DeviceBox
from app.gui.common.fitting_area import FittingArea
from app.gui.common.plain_text import PlainLabel
from app.gui.common.preferences import Preferences
from app.gui.settings.model_page import ModelPage, ModelTools, folder_of
from app.gui.settings.settings_page import SettingsPage
from app.gui.settings.sound_tests import SoundNotices, SoundTests
from app.session.events import DevicesChanged
from app.settings import StartSettings


class GuideSoundPage(SettingsPage):
    """Follows the devices of the session while it is shown.

    Signals:
        devices_chosen: names of microphone and loudspeaker, "" for the default.
    """

    devices_chosen = Signal(str, str)

    def __init__(self, devices: DevicesChanged | None, bridge: SessionBridge) -> None:
        self._devices = devices or DevicesChanged((), (), "", "")
        self._chosen = Preferences()
        self.input_box, self.output_box = DeviceBox(), DeviceBox()
        self.input_box.set_default(self.tr("Default microphone"))
        self.output_box.set_default(self.tr("Default loudspeaker"))
        self.tests = SoundTests(bridge)
        super().__init__(
            (self.tr("&Microphone"), self.input_box, ""),
            (self.tr("&Loudspeaker"), self.output_box, ""),
            (
                self.tr("Test"),
                self.tests,
                self.tr("Records 3 seconds from the microphone, plays them back and discards them."),
            ),
            (
                self.tr("Speech"),
                self.tests.bar,
                self.tr("During the test, the bar passes the line when speech is heard."),
            ),
            ("", self.tests.status, ""),
        )
        bridge.devices_changed.connect(self._follow)
        for box in (self.input_box, self.output_box):
            box.activated.connect(self._choose)

    def show_preferences(self, preferences: Preferences) -> None:
        """Fill the page."""
        self._chosen = preferences
        known = self._devices
        self.input_box.show_devices(known.inputs, known.descriptions, preferences.input_device, known.input)
        self.output_box.show_devices(
            known.outputs, known.descriptions, preferences.output_device, known.output
        )

    def edited(self, preferences: Preferences) -> Preferences:
        """`preferences` with the values of the page."""
        return dataclasses.replace(
            preferences,
            input_device=str(self.input_box.currentData()),
            output_device=str(self.output_box.currentData()),
        )

    def _follow(self, event: DevicesChanged) -> None:
        self._devices = event
        self.show_preferences(self._chosen)

    def _choose(self) -> None:
        self._chosen = self.edited(self._chosen)
        self.devices_chosen.emit(self._chosen.input_device, self._chosen.output_device)


_LEAST_WIDTH = 700


class GuideDialog(QDialog):
    """Pages with Back and Next. "Skip" and Escape leave everything as it was, except the sound devices, which
    apply at once so that they can be tested.

    Signals:
        devices_chosen: names of microphone and loudspeaker, "" for the default.
    """

    devices_chosen = Signal(str, str)

    def __init__(
        self,
        preferences: Preferences,
        devices: DevicesChanged | None,
        parent: QWidget | None,
        bridge: SessionBridge,
        tools: ModelTools,
        running: StartSettings | None = None,
    ) -> None:
        super().__init__(parent)
        self.setWindowTitle(self.tr("Welcome to MOSS Voice"))
        self._given = preferences
        self.sound = GuideSoundPage(devices, bridge)
        self.model = ModelPage(tools, running)
        self.model.device.follow_engine(uses_engine=preferences.uses_engine)
        self.notices = SoundNotices(bridge, self.sound.tests)
        self.summary = PlainLabel()
        self.summary.setWordWrap(True)
        self.summary.setAlignment(Qt.AlignmentFlag.AlignTop)
        self._pages: tuple[SettingsPage, ...] = (self.sound, self.model)
        self._steps: tuple[tuple[str, str, QWidget], ...] = (
            (
                self.tr("Sound"),
                self.tr("%1 Choose microphone and loudspeaker, and test them.").replace(
                    "%1", self._privacy(running)
                ),
                self.sound,
            ),
            (
                self.tr("Model"),
                self.tr(
                    "nano is included and runs on any computer; it knows a small domain, in English. "
                    "MOSS-Speech knows far more and needs a GPU to answer in time. You can talk to nano "
                    "while it downloads."
                ),
                self.model,
            ),
            (
                self.tr("Ready"),
                self.tr(
                    "You can change all of this in the settings and open this guide again from the help menu."
                ),
                self.summary,
            ),
        )
        self.title, self.text, self.place = PlainLabel(), PlainLabel(), PlainLabel()
        self.title.setProperty("role", "hint-title")
        self.text.setProperty("role", "muted")
        self.place.setProperty("role", "small")
        self.text.setWordWrap(True)
        self.stack = QStackedWidget()
        self.skip_button = QPushButton(self.tr("Skip"))
        self.back_button, self.next_button = QPushButton(self.tr("Back")), QPushButton()
        self.next_button.setDefault(True)
        self.skip_button.setAutoDefault(False)
        self.back_button.setAutoDefault(False)
        beside = (self.title, self.text, self.notices, self.next_button)
        for _, _, page in self._steps:
            page.setMinimumWidth(_LEAST_WIDTH)
            self.stack.addWidget(FittingArea(page, beside, fits_text=True))
        self._lay_out()
        for page in self._pages:
            page.show_preferences(preferences)
        self.skip_button.clicked.connect(self.reject)
        self.back_button.clicked.connect(lambda: self._go(self.stack.currentIndex() - 1))
        self.next_button.clicked.connect(self._next)
        self.sound.devices_chosen.connect(self.devices_chosen)
        self.model.files_checked.connect(self._refresh)
        self._go(0)

    def preferences(self) -> Preferences:
        """The preferences in the guide; PyTorch for another model, which the engine was not built from."""
        edited = reduce(lambda edited, page: page.edited(edited), self._pages, self._given)
        return edited if edited.bundle == self._given.bundle else replace(edited, backend="torch")

    def _privacy(self, running: StartSettings | None) -> str:
        if running is None or not running.server:
            return self.tr("Everything you say stays on this computer.")
        return self.tr("What you say goes to the server %1.").replace("%1", server_in_words(running.server))

    def _next(self) -> None:
        if self.stack.currentIndex() == self.stack.count() - 1:
            self.accept()
        else:
            self._go(self.stack.currentIndex() + 1)

    def _go(self, index: int) -> None:
        self.stack.setCurrentIndex(index)
        self._refresh()
        if index == self.stack.count() - 1:
            self.next_button.setFocus()  # there is nothing else to do

    def _refresh(self) -> None:
        index, count = self.stack.currentIndex(), self.stack.count()
        title, text, page = self._steps[index]
        self.title.setText(title)
        self.text.setText(text)
        self._fit_text()
        self.place.setText(self.tr("Step %1 of %2").replace("%1", str(index + 1)).replace("%2", str(count)))
        self.setAccessibleDescription(f"{title}. {text}")
        is_last = index == count - 1
        self.back_button.setVisible(index > 0)
        self.next_button.setText(self.tr("Finish") if is_last else self.tr("Next"))
        self.next_button.setEnabled(page is not self.model or self.model.is_usable)
        if is_last:
            self.summary.setText(self._summary(self.preferences()))

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Give the words above the page their height at this width."""
        super().resizeEvent(event)
        self._fit_text()

    def _fit_text(self) -> None:
        # A window grows for the least height of its parts, not for that of texts that wrap. The height of a
        # label is never below the least one that was set.
        self.text.setMinimumHeight(0)
        self.text.setMinimumHeight(self.text.heightForWidth(self.text.width()))

    def _summary(self, chosen: Preferences) -> str:
        default = self.tr("system default")
        rows = [
            (self.tr("Microphone"), chosen.input_device or default),
            (self.tr("Loudspeaker"), chosen.output_device or default),
            (self.tr("Model"), folder_of(chosen.bundle).name),
            (self.tr("Device"), self.model.device.device_box.currentText()),
        ]
        if chosen.device != "cpu":
            rows.append((self.tr("Weights"), chosen.weights))
        line = self.tr("%1: %2")
        return "\n".join(line.replace("%1", name).replace("%2", value) for name, value in rows)

    def _lay_out(self) -> None:
        buttons = QHBoxLayout()
        for widget, stretch in (
            (self.skip_button, 0),
            (self.place, 1),
            (self.back_button, 0),
            (self.next_button, 0),
        ):
            buttons.addWidget(widget, stretch)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(20, 18, 20, 14)
        layout.setSpacing(10)
        layout.addWidget(self.title)
        layout.addWidget(self.text)
        layout.addWidget(self.stack, 1)
        layout.addWidget(self.notices)
        layout.addLayout(buttons)
