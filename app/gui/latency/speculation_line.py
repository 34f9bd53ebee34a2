"""Benefit and cost of speculative replies, as one line.

In: SpeculationMeasured of the session. GUI thread.
"""

from __future__ import annotations

from PySide6.QtWidgets import QWidget

from app.gui.common.plain_text import PlainLabel, set_tip
from app.gui.latency.definitions import number
from app.session.events import SpeculationMeasured
from app.session.speculation_policy import SpeculationStats


class SpeculationLine(PlainLabel):
    """Empty until the first speculative reply."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent=parent)
        self._stats = SpeculationStats()
        self.setProperty("role", "small")
        self.setWordWrap(True)
        self.retranslate()

    def show_speculation(self, event: SpeculationMeasured) -> None:
        """Show the figures of the session so far."""
        self._stats = event.stats
        self.retranslate()

    def retranslate(self) -> None:
        """Use the words of the current language."""
        stats = self._stats
        text = self.tr("Speculative replies: %1, used: %2. Discarded: %3 ms of engine time, %4 s of speech.")
        values = (stats.speculated, stats.confirmed, number(stats.engine_ms, "ms"), f"{stats.audio_s:.1f}")
        for place, value in enumerate(values, 1):
            text = text.replace(f"%{place}", str(value))
        reasons = {
            "server": self.tr(
                "Speculative replies are off: discarded ones would take the server's time from others."
            ),
            "slow_engine": self.tr("Speculative replies are off: the engine is slower than real time."),
            "slow_roll_back": self.tr(
                "Speculative replies are off: the engine takes too long to be ready again."
            ),
        }
        if reason := reasons.get(stats.off_reason or ""):
            text = f"{text} {reason}" if stats.speculated else reason
        self.setText(text if stats.speculated or reason else "")
        self.setVisible(bool(self.text()))
        set_tip(
            self,
            self.tr(
                "The reply is generated at the first pause and held until the end of your turn is "
                "confirmed. It is discarded if you continue."
            ),
        )
