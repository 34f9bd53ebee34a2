"""Level meters: RMS in dBFS as a bar with a peak that falls slowly."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from app.gui.common.plain_text import set_tip
from app.gui.common.themes import Theme

LOWEST_DBFS = -60.0
_LOUD_DBFS = -6.0
_PEAK_FALL_DB = 1.0


def fraction(dbfs: float) -> float:
    """Place of a level on the meter, 0 at -60 dBFS and below, 1 at full scale."""
    return min(1.0, max(0.0, 1.0 - dbfs / LOWEST_DBFS))


class LevelMeter(QWidget):
    """A horizontal bar. Loud input changes its colour; the tooltip shows the value."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._label = ""
        self._level = LOWEST_DBFS
        self._peak = LOWEST_DBFS
        self._is_active = False
        self.setFixedHeight(8)
        self.setMinimumWidth(60)

    @property
    def level_dbfs(self) -> float:
        """The level on show."""
        return self._level

    def sizeHint(self) -> QSize:
        """A thin bar."""
        return QSize(140, 8)

    def set_label(self, label: str) -> None:
        """Name the meter for people who do not see it."""
        self._label = label
        self.setAccessibleName(label)

    def show_level(self, dbfs: float, is_active: bool = False) -> None:
        """Show a level; `is_active` (speech is detected) draws it in the accent colour."""
        peak = max(dbfs, self._peak - _PEAK_FALL_DB, LOWEST_DBFS)
        if (dbfs, peak, is_active) == (self._level, self._peak, self._is_active):
            return
        self._level, self._peak, self._is_active = dbfs, peak, is_active
        shown = f"{max(dbfs, LOWEST_DBFS):.0f} dBFS"
        set_tip(self, f"{self._label}: {shown}")
        self.setAccessibleDescription(shown)
        self.update()

    def reset(self) -> None:
        """Clear the meter."""
        self._peak = LOWEST_DBFS
        self.show_level(LOWEST_DBFS)
        self.update()

    def set_theme(self, theme: Theme) -> None:
        """Take the colours of a theme."""
        self._theme = theme
        self.update()

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw track, level and peak."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        width, height = float(self.width()), float(self.height())
        painter.setBrush(QColor(self._theme.sunken))
        painter.drawRoundedRect(QRectF(0, 0, width, height), height / 2, height / 2)
        level = width * fraction(self._level)
        if level >= 1.0:
            colour = self._theme.accent if self._is_active else self._theme.positive
            painter.setBrush(QColor(self._theme.danger if self._level > _LOUD_DBFS else colour))
            painter.drawRoundedRect(QRectF(0, 0, max(level, height), height), height / 2, height / 2)
        peak = width * fraction(self._peak)
        if peak > height:
            painter.setBrush(QColor(self._theme.muted))
            painter.drawRect(QRectF(peak - 2, 0, 2, height))
        painter.end()
