"""A small level history of a turn, from the values of the meters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

_BAR, _GAP = 3.0, 2.0
_MOST_LEVELS = 1200
_QUIET_DBFS, _LOUD_DBFS = -46.0, -10.0


def bars(levels: list[float], count: int) -> NDArray[np.float64]:
    """Levels (dBFS) as `count` heights from 0 to 1: the loudest level of each share of the time."""
    heights: NDArray[np.float64] = np.zeros(count)
    if levels:
        values = np.clip((np.array(levels) - _QUIET_DBFS) / (_LOUD_DBFS - _QUIET_DBFS), 0.0, 1.0)
        edges = np.linspace(0, len(values), count + 1)
        for index in range(count):
            low = min(int(edges[index]), len(values) - 1)
            heights[index] = values[low : max(low + 1, int(edges[index + 1]))].max()
    return heights


class WaveStrip(QWidget):
    """Rounded bars in one colour. Levels may be added during the turn."""

    def __init__(self, colour: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._colour = colour
        self._levels: list[float] = []
        self.setFixedHeight(26)
        self.setMinimumWidth(90)

    def sizeHint(self) -> QSize:
        """Wide enough for some thirty bars."""
        return QSize(160, 26)

    @property
    def levels(self) -> tuple[float, ...]:
        """The levels on show, in dBFS."""
        return tuple(self._levels)

    def add_level(self, dbfs: float) -> None:
        """Add the level of the next moment."""
        self._levels.append(dbfs)
        if len(self._levels) > _MOST_LEVELS:
            self._levels = [max(pair) for pair in zip(self._levels[::2], self._levels[1::2], strict=False)]
        self.update()

    def trim(self) -> None:
        """Leave out the silence at the end."""
        while self._levels and self._levels[-1] <= _QUIET_DBFS:
            self._levels.pop()
        self.update()

    def clear(self) -> None:
        """Start over."""
        self._levels.clear()
        self.update()

    def set_colour(self, colour: str) -> None:
        """Draw in this colour (#rrggbb)."""
        self._colour = colour
        self.update()

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw the bars."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(self._colour))
        count = max(1, int(self.width() // (_BAR + _GAP)))
        middle = self.height() / 2
        for index, height in enumerate(bars(self._levels, count)):
            tall = max(_BAR, height * (self.height() - 2))
            box = QRectF(index * (_BAR + _GAP), middle - tall / 2, _BAR, tall)
            painter.drawRoundedRect(box, _BAR / 2, _BAR / 2)
        painter.end()
