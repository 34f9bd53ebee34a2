"""Two buttons that test microphone and loudspeaker, with the bar and the line that show what happens.

In: Levels, SoundChecked and errors of the session. Out: CheckMicrophone, CheckLoudspeaker; Start and Stop
around a test of a microphone that is closed. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPalette
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QWidget

from app.gui.bridge import SessionBridge
from app.gui.error_texts import in_words
from app.gui.plain_text import PlainLabel
from app.gui.preferences import SENSITIVITY
from app.session.commands import CheckLoudspeaker, CheckMicrophone, Start, Stop
from app.session.events import ErrorRaised, Levels, SessionState, SoundChecked

_HEIGHT = 16


class ProbabilityBar(QWidget):
    """The probability that the microphone hears speech, and the threshold of speech."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.probability = 0.0
        self.threshold = SENSITIVITY["normal"][0]

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


class SoundTests(QWidget):
    """The buttons; `bar` and `status` are laid out by the page. Without a bridge nothing is tested."""

    def __init__(self, bridge: SessionBridge | None) -> None:
        super().__init__()
        self._bridge = bridge
        self._has_opened = False
        """Whether the microphone was opened for the test that runs."""
        self.bar, self.status = ProbabilityBar(), PlainLabel()
        self.microphone_button = QPushButton(self.tr("Test microphone"))
        self.loudspeaker_button = QPushButton(self.tr("Test loudspeaker"))
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        for button in (self.microphone_button, self.loudspeaker_button):
            button.setEnabled(bridge is not None)
            button.setAutoDefault(False)
            row.addWidget(button)
        row.addStretch(1)
        if bridge is None:
            return
        self.microphone_button.clicked.connect(self._test_microphone)
        self.loudspeaker_button.clicked.connect(lambda: bridge.send(CheckLoudspeaker()))
        bridge.levels.connect(self._show_levels)
        bridge.sound_checked.connect(self._show_test)
        bridge.error_raised.connect(self._show_error)

    def _show_levels(self, event: Levels) -> None:
        self.bar.show_probability(event.vad_probability)

    def _test_microphone(self) -> None:
        bridge = self._bridge
        if bridge is None:
            return
        if bridge.state is SessionState.STOPPED:
            self._has_opened = True
            bridge.send(Start())
        bridge.send(CheckMicrophone())

    def _show_test(self, event: SoundChecked) -> None:
        words = {
            "recording": self.tr("Recording: say something …"),
            "playing": self.tr("Playing …"),
            "done": "",
        }
        self.status.setText(words[event.phase])
        if event.phase == "done":
            self._close_microphone()

    def _show_error(self, event: ErrorRaised) -> None:
        """The banner of the window is behind the dialog."""
        self.status.setText(in_words(event.message))
        self._close_microphone()

    def _close_microphone(self) -> None:
        if self._has_opened and self._bridge is not None:
            self._has_opened = False
            self._bridge.send(Stop())
