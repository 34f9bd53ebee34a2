"""The page of the settings dialog about sensitivity, with tests of microphone and loudspeaker.

In: Levels, SoundChecked and StateChanged of the session. Out: CheckMicrophone, CheckLoudspeaker, the chosen
sensitivity. GUI thread.
"""

from __future__ import annotations

import dataclasses

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPalette
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QWidget

from app.gui.bridge import SessionBridge
from app.gui.error_texts import in_words
from app.gui.preferences import SENSITIVITY, Preferences, Sensitivity
from app.gui.settings_page import SettingsPage, choice_box, choose
from app.session.commands import CheckLoudspeaker, CheckMicrophone
from app.session.events import ErrorRaised, Levels, SoundChecked

_HEIGHT = 16


class ProbabilityBar(QWidget):
    """The probability that the microphone hears speech, and the threshold of speech."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.probability = 0.0
        self.threshold = 0.5

    def sizeHint(self) -> QSize:
        """A bar."""
        return QSize(220, _HEIGHT)

    def show_probability(self, probability: float) -> None:
        """The latest probability, 0 to 1."""
        self.probability = probability
        self.setAccessibleDescription(f"{probability:.0%}")
        self.update()

    def show_threshold(self, threshold: float) -> None:
        """From here on it counts as speech."""
        self.threshold = threshold
        self.update()

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw track, probability and threshold."""
        painter = QPainter(self)
        palette, width = self.palette(), float(self.width())
        top, height = (self.height() - _HEIGHT) / 2 + 3, _HEIGHT - 6.0
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(palette.color(QPalette.ColorRole.Mid))
        painter.drawRoundedRect(QRectF(0, top, width, height), 4, 4)
        is_speech = self.probability >= self.threshold
        role = QPalette.ColorRole.Highlight if is_speech else QPalette.ColorRole.PlaceholderText
        painter.setBrush(QColor(palette.color(role)))
        painter.drawRoundedRect(QRectF(0, top, width * self.probability, height), 4, 4)
        painter.setBrush(palette.color(QPalette.ColorRole.Text))
        painter.drawRect(QRectF(width * self.threshold - 1, top - 3, 2, _HEIGHT))
        painter.end()


class SoundCheckPage(SettingsPage):
    """Without a bridge nothing is tested."""

    def __init__(self, bridge: SessionBridge | None) -> None:
        self.sensitivity_box = choice_box(
            ((self.tr("Low"), "low"), (self.tr("Normal"), "normal"), (self.tr("High"), "high"))
        )
        self.bar, self.status = ProbabilityBar(), QLabel()
        self.microphone_button, self.loudspeaker_button = QPushButton(), QPushButton()
        tests = QWidget()
        row = QHBoxLayout(tests)
        row.setContentsMargins(0, 0, 0, 0)
        for button in (self.microphone_button, self.loudspeaker_button):
            row.addWidget(button)
        row.addStretch(1)
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
                self.bar,
                self.tr("Probability that the microphone hears speech. Above the line it starts a turn."),
            ),
            (
                self.tr("Test"),
                tests,
                self.tr("Records 3 seconds from the microphone, plays them back and discards them."),
            ),
            ("", self.status, ""),
        )
        self.microphone_button.setText(self.tr("Test microphone"))
        self.loudspeaker_button.setText(self.tr("Test loudspeaker"))
        self.sensitivity_box.currentIndexChanged.connect(self._show_threshold)
        self._show_threshold()
        self._follow(bridge)

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

    def _follow(self, bridge: SessionBridge | None) -> None:
        for button in (self.microphone_button, self.loudspeaker_button):
            button.setEnabled(bridge is not None)
        if bridge is None:
            return
        self.microphone_button.clicked.connect(lambda: bridge.send(CheckMicrophone()))
        self.loudspeaker_button.clicked.connect(lambda: bridge.send(CheckLoudspeaker()))
        bridge.levels.connect(self._show_levels)
        bridge.sound_checked.connect(self._show_test)
        bridge.error_raised.connect(self._show_error)

    def _show_threshold(self) -> None:
        self.bar.show_threshold(SENSITIVITY[self.sensitivity][0])

    def _show_levels(self, event: Levels) -> None:
        self.bar.show_probability(event.vad_probability)

    def _show_test(self, event: SoundChecked) -> None:
        words = {
            "recording": self.tr("Recording: say something …"),
            "playing": self.tr("Playing …"),
            "done": "",
        }
        self.status.setText(words[event.phase])

    def _show_error(self, event: ErrorRaised) -> None:
        """The banner of the window is behind the dialog."""
        self.status.setText(in_words(event.message))
