"""The page of the settings dialog about sensitivity, with tests of microphone and loudspeaker.

In: preferences, events of the session. Out: the chosen sensitivity. GUI thread.
"""

from __future__ import annotations

import dataclasses

from app.gui.common.bridge import SessionBridge
from app.gui.common.preferences import SENSITIVITY, Preferences, Sensitivity
from app.gui.settings.settings_page import SettingsPage, choice_box, choose
from app.gui.settings.sound_tests import SoundTests


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
        self.sensitivity_box.currentIndexChanged.connect(self._show_threshold)
        self._show_threshold()

    @property
    def sensitivity(self) -> Sensitivity:
        """The chosen one."""
        chosen: Sensitivity = self.sensitivity_box.currentData()
        return chosen

    def show_preferences(self, preferences: Preferences) -> None:
        """Fill the page."""
        choose(self.sensitivity_box, preferences.sensitivity)

    def edited(self, preferences: Preferences) -> Preferences:
        """`preferences` with the values of the page."""
        return dataclasses.replace(preferences, sensitivity=self.sensitivity)

    def _show_threshold(self) -> None:
        self.tests.bar.show_threshold(SENSITIVITY[self.sensitivity][0])
