"""The pages of the settings dialog about sound: devices and the processing of the microphone; sensitivity,
with tests of microphone and loudspeaker.

In: the devices that exist, preferences, events of the session. Out: the edited preferences. GUI thread.
"""

from __future__ import annotations

from PySide6.QtWidgets import QCheckBox

from app.audio.echo_libraries import PACKAGES, is_installed
from app.gui.common.bridge import SessionBridge
from app.gui.common.device_box import DeviceBox
from app.gui.common.preferences import LATENCIES_MS, SENSITIVITY, Preferences, Sensitivity
from app.gui.settings.settings_page import SettingsPage, choice_box
from app.gui.settings.sound_tests import SoundTests
from app.session.events import DevicesChanged


class SoundPage(SettingsPage):
    """Without `devices` only the chosen ones are listed."""

    def __init__(self, devices: DevicesChanged | None) -> None:
        self._devices = devices or DevicesChanged((), (), "", "")
        self.input_box, self.output_box = DeviceBox(), DeviceBox()
        self.input_box.set_default(self.tr("Default microphone"))
        self.output_box.set_default(self.tr("Default loudspeaker"))
        self.latency_box = choice_box(
            (self.tr("%1 ms").replace("%1", str(latency)), latency) for latency in LATENCIES_MS
        )
        self.echo_box = choice_box(
            ((self.tr("Automatic"), "auto"), (self.tr("On"), "on"), (self.tr("Off"), "off"))
        )
        self.echo_library_box = choice_box(
            (
                package if is_installed(library) else self.tr("%1 (not installed)").replace("%1", package),
                library,
            )
            for library, package in PACKAGES.items()
        )
        self.noise_suppression = QCheckBox(self.tr("Reduce steady noise"))
        self.gain_control = QCheckBox(self.tr("Adjust speech to a constant level"))
        self.bystanders = QCheckBox(self.tr("Ignore quieter voices"))
        super().__init__(
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
                    "Removes the assistant's voice from the microphone, so that a reply does not "
                    "interrupt itself. Automatic turns it off while no echo is measured, for example "
                    "with headphones."
                ),
            ),
            (
                self.tr("Echo &canceller"),
                self.echo_library_box,
                self.tr("Both are WebRTC's and cancel equally well; livekit takes more memory."),
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
            (
                self.tr("Other &people"),
                self.bystanders,
                self.tr(
                    "After two of your turns, speech that is much quieter neither opens a turn nor "
                    "interrupts a reply. Speech that is repeated within three seconds is heard."
                ),
            ),
        )
        self.bind(
            input_device=self.input_box,
            output_device=self.output_box,
            latency_ms=self.latency_box,
            echo_cancellation=self.echo_box,
            echo_library=self.echo_library_box,
            noise_suppression=self.noise_suppression,
            gain_control=self.gain_control,
            ignores_bystanders=self.bystanders,
        )

    def show_preferences(self, preferences: Preferences) -> None:
        """Fill the page."""
        known = self._devices
        self.input_box.show_devices(known.inputs, known.descriptions, preferences.input_device)
        self.output_box.show_devices(known.outputs, known.descriptions, preferences.output_device)
        super().show_preferences(preferences)


class SoundCheckPage(SettingsPage):
    """Without a bridge nothing is tested."""

    def __init__(self, bridge: SessionBridge | None) -> None:
        self.sensitivity_box = choice_box(
            ((self.tr("Low"), "low"), (self.tr("Normal"), "normal"), (self.tr("High"), "high"))
        )
        self.tests = SoundTests(bridge)
        super().__init__(
            (
                self.tr("Sensiti&vity"),
                self.sensitivity_box,
                self.tr(
                    "High detects soft voices; low ignores more speech that is not meant for the assistant."
                ),
            ),
            (
                self.tr("Speech"),
                self.tests.bar,
                self.tr("Probability that the microphone hears speech. Above the line it starts a turn."),
            ),
            (
                self.tr("Test"),
                self.tests,
                self.tr("Records 3 seconds from the microphone, plays them back and discards them."),
            ),
            ("", self.tests.status, ""),
        )
        self.bind(sensitivity=self.sensitivity_box)
        self.sensitivity_box.currentIndexChanged.connect(self._show_threshold)
        self._show_threshold()

    @property
    def sensitivity(self) -> Sensitivity:
        """The chosen one."""
        chosen: Sensitivity = self.sensitivity_box.currentData()
        return chosen

    def _show_threshold(self) -> None:
        self.tests.bar.show_threshold(SENSITIVITY[self.sensitivity][0])
