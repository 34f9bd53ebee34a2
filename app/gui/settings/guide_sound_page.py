"""The first step of the guide: microphone and loudspeaker, with a test of both.

In: the devices that exist, events of the session. Out: the chosen devices at once, tests of them. GUI thread.
"""

from __future__ import annotations

import dataclasses

from PySide6.QtCore import Signal

from app.gui.common.bridge import SessionBridge
from app.gui.common.device_box import DeviceBox
from app.gui.common.preferences import Preferences
from app.gui.settings.settings_page import SettingsPage
from app.gui.settings.sound_tests import SoundTests
from app.session.events import DevicesChanged


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
                self.tr("While you test the microphone, the bar passes the line when it hears speech."),
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
