"""Echo, under-runs and dropped input in three lines. As wide as its longest text, so that it never shifts.

In: Counters and EchoMeasured of the session. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QFont, QFontMetrics
from PySide6.QtWidgets import QVBoxLayout, QWidget

from app.audio.echo_cancellation import EchoMeasurement
from app.gui.common.follows_language import FollowsLanguage
from app.gui.common.plain_text import PlainLabel, set_tip
from app.session.events import Counters, EchoMeasured

ALERT_MS = 60_000
"""A counter is shown as a warning for this long after it has grown; then it is a number like others."""
_WARNING = "⚠ "
_LARGEST = 99_999
"""Larger counts still fit into the width of the words."""


class CounterStrip(FollowsLanguage, QWidget):
    """Shows counters since the start, or since they were cleared."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._counters = self._cleared = Counters(0, 0)
        self._echo = EchoMeasurement()
        self._alerts = (QTimer(self), QTimer(self))
        """Of under-runs and dropped input: active while they are a warning."""
        for timer in self._alerts:
            timer.setSingleShot(True)
            timer.setInterval(ALERT_MS)
            timer.timeout.connect(self._write_counters)
        self.echo, self.underruns, self.dropped = PlainLabel(), PlainLabel(), PlainLabel()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(1)
        for label in (self.echo, self.underruns, self.dropped):
            label.setProperty("role", "counter")
            label.setAlignment(Qt.AlignmentFlag.AlignRight)
            layout.addWidget(label)
        self.retranslate()

    def show_counters(self, event: Counters) -> None:
        """Show how often playback starved and how much input was lost."""
        before, self._counters = self._counters, event
        for timer, has_grown in zip(
            self._alerts,
            (event.underruns > before.underruns, event.dropped_input > before.dropped_input),
            strict=True,
        ):
            if has_grown:
                timer.start()
        self._write_counters()

    def clear(self) -> None:
        """Count from 0 again."""
        self._cleared = self._counters
        for timer in self._alerts:
            timer.stop()
        self._write_counters()

    def show_echo(self, event: EchoMeasured) -> None:
        """Show how loud the echo is and by how much it is cancelled."""
        self._echo = event.echo
        self._write_echo()

    def retranslate(self) -> None:
        """Use the words of the current language."""
        self._write_counters()
        self._write_echo()
        bold = QFont(self.font())
        bold.setBold(True)
        metrics = QFontMetrics(bold)
        texts = [_WARNING + self.tr("under-runs %1"), _WARNING + self.tr("dropped input %1")]
        texts = [text.replace("%1", str(_LARGEST)) for text in texts]
        texts += [self._echo_text(EchoMeasurement("unavailable")), self.tr("echo not measured")]
        texts.append(self._echo_in_figures(-88.0, -88.0))
        self.setMinimumWidth(max(metrics.horizontalAdvance(text) for text in texts) + 4)

    def _write_counters(self) -> None:
        underruns, dropped = self._alerts
        for label, timer, count, words, definition in (
            (
                self.underruns,
                underruns,
                self._counters.underruns - self._cleared.underruns,
                self.tr("under-runs %1"),
                self.tr("How often playback ran dry in the middle of a reply, since the start or Clear."),
            ),
            (
                self.dropped,
                dropped,
                self._counters.dropped_input - self._cleared.dropped_input,
                self.tr("dropped input %1"),
                self.tr("Microphone samples that were dropped because they were not read in time."),
            ),
        ):
            is_alert = timer.isActive()
            label.setText((_WARNING if is_alert else "") + words.replace("%1", str(count)))
            set_tip(label, definition)
            label.setAccessibleDescription(definition)
            if label.property("alert") != is_alert:
                label.setProperty("alert", is_alert)
                label.style().unpolish(label)
                label.style().polish(label)

    def _write_echo(self) -> None:
        definition = self.tr(
            "Level of a reply in the microphone against its level as played, before and after echo "
            "cancellation: the negative echo return loss, and that less its enhancement. Medians of the "
            "latest moments with an echo."
        )
        self.echo.setText(self._echo_text(self._echo))
        set_tip(self.echo, definition)
        self.echo.setAccessibleDescription(definition)

    def _echo_text(self, echo: EchoMeasurement) -> str:
        if echo.state == "off":
            return self.tr("echo not cancelled")
        if echo.state == "unavailable":
            return _WARNING + self.tr("echo not cancelled")
        if echo.state == "no_echo":
            return self.tr("no echo")
        if echo.erl_db is None or echo.erle_db is None:
            return self.tr("echo not measured")
        return self._echo_in_figures(-echo.erl_db, -echo.erl_db - echo.erle_db)

    def _echo_in_figures(self, before_db: float, after_db: float) -> str:
        text = self.tr("echo %1 → %2 dB")
        return text.replace("%1", f"{before_db:.0f}").replace("%2", f"{after_db:.0f}")
