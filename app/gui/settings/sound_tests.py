"""Two buttons that test microphone and loudspeaker, with the bar and the line that show what happens.

In: Levels, SoundChecked, errors and notices of the session. Out: CheckMicrophone, CheckLoudspeaker; Start and
Stop around a test of a microphone that is closed; the verdict on it. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QHideEvent, QPainter, QPaintEvent, QPalette
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QWidget

from app.gui.common.bridge import SessionBridge
from app.gui.common.error_texts import in_words
from app.gui.common.notices import NoticeLine
from app.gui.common.plain_text import PlainLabel
from app.gui.common.preferences import SENSITIVITY
from app.session.commands import CheckLoudspeaker, CheckMicrophone, Start, Stop
from app.session.engine_jobs import EngineNotice
from app.session.events import (
    CaptionsNoticed,
    DeviceNoticed,
    ErrorRaised,
    Levels,
    MicrophoneVerdict,
    SessionState,
    SoundChecked,
)

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
        self._verdict = ""
        """On the microphone that was tested last."""
        self.bar, self.status = ProbabilityBar(), PlainLabel()
        self.status.setWordWrap(True)
        self.status.hide()
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

    def hideEvent(self, event: QHideEvent) -> None:
        """The user has left the page: a microphone that was opened for a test is closed."""
        super().hideEvent(event)
        if not event.spontaneous():  # as when the window is minimised
            self._close_microphone()

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
        if event.verdict is not None:
            self._verdict = self._in_words(event.verdict, event.level_dbfs)
        elif event.phase != "done":
            self._verdict = ""
        words = {
            "recording": self.tr("Recording: say something …"),
            "playing": self.tr("Playing …"),
            "done": "",
        }
        self._say(" ".join(filter(None, (self._verdict, words[event.phase]))))
        if event.phase == "done":
            self._close_microphone()

    def _in_words(self, verdict: MicrophoneVerdict, level_dbfs: float) -> str:
        words = {
            "silent": self.tr(
                "%1 delivers silence. Check that it is switched on and not muted, or choose another one."
            ),
            "quiet": self.tr(
                "%1 is too quiet (%2 dBFS). Come closer, raise its level in the system's sound settings, or "
                "turn on gain control."
            ),
            "no_speech": self.tr(
                "%1 delivers sound (%2 dBFS), but no speech was heard. Say something during the test; if you "
                "did, choose another microphone."
            ),
            "clipping": self.tr(
                "%1 is too loud and distorts. Lower its level in the system's sound settings, or move away "
                "from it."
            ),
            "good": self.tr("%1 is good (%2 dBFS)."),
        }
        text = words[verdict].replace("%2", f"{level_dbfs:.0f}")
        return text.replace("%1", self._microphone or self.tr("The microphone"))

    @property
    def _microphone(self) -> str:
        """What the system calls the microphone in use."""
        devices = self._bridge.devices if self._bridge is not None else None
        return "" if devices is None else devices.descriptions.get(devices.input) or devices.input

    def _show_error(self, event: ErrorRaised) -> None:
        """The banner of the window is behind the dialog."""
        self._say(in_words(event.problem))
        self._close_microphone()

    def _say(self, text: str) -> None:
        self.status.setText(text)
        self.status.setVisible(bool(text))

    def _close_microphone(self) -> None:
        if self._has_opened and self._bridge is not None:
            self._has_opened = False
            self._bridge.send(Stop())


class SoundNotices(NoticeLine):
    """Errors and notices of the session below the pages of a dialog, which hides those of the window; errors
    not while its `tests` are visible, which say them."""

    def __init__(self, bridge: SessionBridge | None, tests: SoundTests) -> None:
        super().__init__()
        self._tests = tests
        if bridge is not None:
            bridge.error_raised.connect(self._show_error)
            bridge.noticed.connect(self._show_event)

    def _show_error(self, event: ErrorRaised) -> None:
        if not self._tests.isVisible():
            self._show_event(event)

    def _show_event(self, event: ErrorRaised | DeviceNoticed | EngineNotice | CaptionsNoticed) -> None:
        self.announce(in_words(event.problem))
