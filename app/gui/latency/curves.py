"""One curve of a live plot, as items of pyqtgraph: line and points, bars, marks at the edge, percentiles.

Several values of a turn are one point at their median with a bar from the smallest to the largest. Values
above the range are triangles at the upper edge. Pens of width 1 and no antialiasing, to be cheap to redraw.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor

from app.gui.common.themes import Ink
from app.gui.latency.axis_range import robust_maximum
from app.gui.latency.metrics import Metric
from app.gui.latency.series import LevelSeries, TurnSeries

Points = NDArray[np.float64]

_EDGE = 0.96
"""Height of the triangles, as a share of the range."""
_MARKS = {"interrupt": "t", "resume": "t1", "cut": "x"}
_NOTHING: Points = np.zeros(0)


@dataclass(frozen=True, slots=True)
class CurveStyle:
    """How one series is drawn. `on_right` puts it on a separate axis at the right edge."""

    metric: Metric
    ink: Ink
    symbol: str | None = "o"
    dashed: bool = False
    filled: bool = False
    on_right: bool = False
    percentiles: bool = False


def with_gaps(x: Points, y: Points, gap: float = 0.5) -> tuple[Points, Points]:
    """Insert 0 where a time series has no value for longer than `gap`. Only for drawing."""
    breaks = np.flatnonzero(np.diff(x) > gap) + 1
    if not len(breaks):
        return x, y
    edges = np.stack((x[breaks - 1] + 1e-3, x[breaks] - 1e-3), axis=1).ravel()
    twice = np.repeat(breaks, 2)
    return np.insert(x, twice, edges), np.insert(y, twice, 0.0)


class InterruptionMarks:
    """Triangles and crosses on the level of the playback: interrupted, resumed, cut."""

    def __init__(self, box: pg.ViewBox) -> None:
        self.item = pg.ScatterPlotItem(size=8, pen=None)
        box.addItem(self.item, ignoreBounds=True)

    def draw(self, interruptions: Iterable[tuple[str, float]], upper: float) -> None:
        """Draw decisions at their second."""
        spots = [{"pos": (second, _EDGE * upper), "symbol": _MARKS[kind]} for kind, second in interruptions]
        self.item.setData(spots)

    def set_colour(self, colour: str) -> None:
        """Take a colour of the theme."""
        self.item.setBrush(pg.mkBrush(colour))


class Curve:
    """The items of one series in a view box.

    Attributes:
        highest: the value that the range must hold; outliers do not count.
    """

    def __init__(self, style: CurveStyle, box: pg.ViewBox) -> None:
        self.style = style
        self.highest = 0.0
        self.line = pg.PlotDataItem(antialias=False, skipFiniteCheck=True, symbol=style.symbol)
        self.bars = pg.ErrorBarItem(x=_NOTHING, y=_NOTHING, top=_NOTHING, bottom=_NOTHING)
        self.edge = pg.PlotDataItem(antialias=False, pen=None, symbol="t1")
        self.percentiles = {which: pg.InfiniteLine(angle=0) for which in ("p50", "p95")}
        shown = list(self.percentiles.values()) if style.percentiles else []
        for item in (self.bars, self.line, self.edge, *shown):
            box.addItem(item, ignoreBounds=True)
        self._turns = self._tops = _NOTHING
        self.clear()

    def clear(self) -> None:
        """Draw nothing."""
        self.highest = 0.0
        self._turns = self._tops = _NOTHING
        self.line.setData([], [])
        self.edge.setData([], [])
        self.bars.setData(x=_NOTHING, y=_NOTHING, top=_NOTHING, bottom=_NOTHING)
        for line in self.percentiles.values():
            line.setVisible(False)

    def draw(self, series: TurnSeries | LevelSeries) -> None:
        """Draw the values of a series."""
        if isinstance(series, LevelSeries):
            x, y = with_gaps(series.x, series.y)
            self.line.setData(x, y)
            self.highest = float(y.max()) if len(y) else 0.0
            return
        points = series.points()
        self.line.setData(points.turns, points.medians)
        if series.per_call:
            above, below = points.highest - points.medians, points.medians - points.lowest
            self.bars.setData(x=points.turns, y=points.medians, top=above, bottom=below)
        self._turns, self._tops = points.turns, points.highest
        self.highest = robust_maximum(points.highest)
        summary = series.summary()
        for which, line in self.percentiles.items():
            line.setVisible(summary is not None)
            if summary is not None:
                line.setValue(getattr(summary, which))

    def mark_edge(self, upper: float) -> None:
        """Mark what is above the range."""
        outside = self._turns[self._tops > upper]
        self.edge.setData(outside, np.full(len(outside), _EDGE * upper))

    def set_colour(self, colour: str) -> None:
        """Take a colour of the theme."""
        style = Qt.PenStyle.DashLine if self.style.dashed else Qt.PenStyle.SolidLine
        self.line.setPen(pg.mkPen(colour, width=1, style=style))
        faded = QColor(colour)
        faded.setAlphaF(0.45)
        self.bars.setData(pen=pg.mkPen(faded, width=1))
        for item, size in ((self.line, 5), (self.edge, 7)):
            item.setSymbolPen(None)
            item.setSymbolBrush(pg.mkBrush(colour))
            item.setSymbolSize(size)
        for which, line in self.percentiles.items():
            dash = Qt.PenStyle.DotLine if which == "p95" else Qt.PenStyle.DashLine
            line.setPen(pg.mkPen(colour, width=1, style=dash))
        if self.style.filled:
            area = QColor(colour)
            area.setAlphaF(0.28)
            self.line.setFillLevel(0.0)
            self.line.setFillBrush(pg.mkBrush(area))
