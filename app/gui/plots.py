"""One live plot: a card with the curves of some `Series`, and a legend with their statistics.

Cheap to redraw: pens of width 1, no antialiasing, no auto-range, at most `MAX_POINTS` points.
A curve differs from its neighbours by colour, by line style and by the shape of its points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QFont
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from app.gui.axis_range import AxisRange
from app.gui.definitions import define, number, tooltip, unit_name
from app.gui.metrics import MAX_POINTS, LatencyMetrics, Metric, SeriesSummary
from app.gui.themes import Ink, Theme

Points = NDArray[np.float64]

_WINDOWS = (20, 40, 80, 160, 320, MAX_POINTS)
_MOST_SYMBOLS = 48
_GLYPHS = {"o": "●", "s": "■", "t1": "▲", None: "▬"}


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


@dataclass(frozen=True, slots=True)
class PlotStyle:
    """One plot. `seconds` is the span of a time axis; without it x counts calls or turns, `most` of them."""

    curves: tuple[CurveStyle, ...]
    smallest: float
    reference: float | None = None
    seconds: float | None = None
    most: int = 160


def with_gaps(x: Points, y: Points, gap: float = 0.5) -> tuple[Points, Points]:
    """Insert 0 where a time series has no value for longer than `gap`. Only for drawing."""
    breaks = np.flatnonzero(np.diff(x) > gap) + 1
    if not len(breaks):
        return x, y
    edges = np.stack((x[breaks - 1] + 1e-3, x[breaks] - 1e-3), axis=1).ravel()
    twice = np.repeat(breaks, 2)
    return np.insert(x, twice, edges), np.insert(y, twice, 0.0)


class LivePlot(QFrame):
    """A plot card. `refresh` draws the changes since the last call."""

    def __init__(self, style: PlotStyle, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.style_of_plot = style
        self.setProperty("role", "card")
        self._theme = theme
        self._legends = {curve.metric: QLabel() for curve in style.curves}
        self._drawn: dict[Metric, int] = {}
        self._summaries: dict[Metric, SeriesSummary | None] = {}
        self._left = AxisRange(style.smallest)
        self._right_range = AxisRange(4.0)
        self.plot = pg.PlotWidget(background=None)
        self._set_up_plot()
        self._curves = {curve.metric: self._add_curve(curve) for curve in style.curves}
        self._lines = self._add_lines()
        self._lay_out()
        self.set_theme(theme)

    def set_title(self, title: str, description: str) -> None:
        """Name the plot; `description` is read to people who do not see it."""
        self.setAccessibleName(title)
        self.setToolTip(f"<qt><b>{title}</b><br>{description}</qt>")
        self.plot.setAccessibleName(title)
        self.plot.setAccessibleDescription(description)

    def name_reference(self, text: str) -> None:
        """Label the reference line."""
        if (line := self._lines.get(None)) is not None:
            line.label.setFormat(text)

    def refresh(self, metrics: LatencyMetrics) -> bool:
        """Draw the series that grew; True if anything was drawn."""
        grown = [
            curve
            for curve in self.style_of_plot.curves
            if metrics.series[curve.metric].total != self._drawn.get(curve.metric, 0)
        ]
        for curve in grown:
            self._draw_curve(curve, metrics)
        if grown:
            self._fit(metrics)
        return bool(grown)

    def retranslate(self) -> None:
        """Write the legend again in the current language."""
        for curve in self.style_of_plot.curves:
            self._write_legend(curve)

    def reset(self) -> None:
        """Empty the plot."""
        self._drawn.clear()
        self._summaries.clear()
        for item in self._curves.values():
            item.setData([], [])
        for line in self._lines.values():
            line.setVisible(False)

    def set_theme(self, theme: Theme) -> None:
        """Take the colours of a theme."""
        self._theme = theme
        item = self.plot.getPlotItem()
        for name in ("left", "bottom", "right"):
            axis = item.getAxis(name)
            axis.setPen(pg.mkPen(theme.grid, width=1))
            axis.setTextPen(pg.mkPen(theme.muted, width=1))
        for curve in self.style_of_plot.curves:
            self._colour_curve(curve)
        for key, line in self._lines.items():
            colour = theme.muted if key is None else theme.ink(self._style(key[0]).ink)
            dash = Qt.PenStyle.DotLine if key is not None and key[1] == "p95" else Qt.PenStyle.DashLine
            line.setPen(pg.mkPen(colour, width=1, style=dash))
            if key is None:
                line.label.setColor(colour)
        self.plot.setBackground(theme.surface)
        for curve in self.style_of_plot.curves:
            self._write_legend(curve)

    def _style(self, metric: Metric) -> CurveStyle:
        return next(curve for curve in self.style_of_plot.curves if curve.metric is metric)

    def _set_up_plot(self) -> None:
        plot, item = self.plot, self.plot.getPlotItem()
        plot.setFrameShape(QFrame.Shape.NoFrame)
        plot.setMenuEnabled(False)
        plot.setMouseEnabled(False, False)
        plot.hideButtons()
        plot.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        plot.setMinimumHeight(84)
        plot.disableAutoRange()
        font = QFont(self.font())
        font.setPointSizeF(7.5)
        for name in ("left", "bottom", "right"):
            axis = item.getAxis(name)
            axis.setStyle(tickFont=font, tickLength=0, tickTextOffset=4, hideOverlappingLabels=False)
            axis.enableAutoSIPrefix(False)
        item.getAxis("left").setWidth(34)
        item.getAxis("left").setGrid(255)
        item.getAxis("bottom").setHeight(16)
        item.setContentsMargins(0, 2, 8, 0)
        self._right_box: pg.ViewBox | None = None
        if any(curve.on_right for curve in self.style_of_plot.curves):
            self._right_box = pg.ViewBox(enableMenu=False, enableMouse=False)
            item.showAxis("right")
            item.getAxis("right").setWidth(26)
            item.scene().addItem(self._right_box)
            item.getAxis("right").linkToView(self._right_box)
            self._right_box.disableAutoRange()
            item.getViewBox().sigResized.connect(self._align_right_box)
            self._right_box.setYRange(0, self._right_range.upper, padding=0)
        plot.setYRange(0, self._left.upper, padding=0)
        self._set_x_range(0.0, float(self.style_of_plot.seconds or _WINDOWS[0]))

    def _align_right_box(self) -> None:
        assert self._right_box is not None
        self._right_box.setGeometry(self.plot.getPlotItem().getViewBox().sceneBoundingRect())

    def _set_x_range(self, low: float, high: float) -> None:
        self.plot.setXRange(low, high, padding=0)
        if self._right_box is not None:
            self._right_box.setXRange(low, high, padding=0)

    def _add_curve(self, curve: CurveStyle) -> pg.PlotDataItem:
        item = pg.PlotDataItem(antialias=False, skipFiniteCheck=True)
        if curve.on_right and self._right_box is not None:
            self._right_box.addItem(item)
        else:
            self.plot.addItem(item)
        return item

    def _add_lines(self) -> dict[tuple[Metric, str] | None, pg.InfiniteLine]:
        lines: dict[tuple[Metric, str] | None, pg.InfiniteLine] = {}
        for curve in self.style_of_plot.curves:
            if curve.percentiles:
                for which in ("p50", "p95"):
                    lines[curve.metric, which] = pg.InfiniteLine(angle=0)
                    lines[curve.metric, which].setVisible(False)
        if self.style_of_plot.reference is not None:
            place = {"position": 0.97, "anchors": [(1, 0), (1, 0)]}
            lines[None] = pg.InfiniteLine(self.style_of_plot.reference, angle=0, label="", labelOpts=place)
            small = QFont(self.font())
            small.setPointSizeF(8.0)
            lines[None].label.setFont(small)
        for line in lines.values():
            self.plot.addItem(line, ignoreBounds=True)
        return lines

    def _colour_curve(self, curve: CurveStyle) -> None:
        colour = self._theme.ink(curve.ink)
        item = self._curves[curve.metric]
        item.setPen(
            pg.mkPen(colour, width=1, style=Qt.PenStyle.DashLine if curve.dashed else Qt.PenStyle.SolidLine)
        )
        item.setSymbolPen(None)
        item.setSymbolBrush(pg.mkBrush(colour))
        item.setSymbolSize(5)
        if curve.filled:
            area = QColor(colour)
            area.setAlphaF(0.28)
            item.setFillLevel(0.0)
            item.setFillBrush(pg.mkBrush(area))

    def _draw_curve(self, curve: CurveStyle, metrics: LatencyMetrics) -> None:
        series = metrics.series[curve.metric]
        self._drawn[curve.metric] = series.total
        x, y = series.x, series.y
        if self.style_of_plot.seconds is None:
            x, y = x[-self.style_of_plot.most :], y[-self.style_of_plot.most :]
        else:
            x, y = with_gaps(x, y)
        item = self._curves[curve.metric]
        has_symbols = curve.symbol is not None and len(x) <= _MOST_SYMBOLS
        if item.opts["symbol"] != (curve.symbol if has_symbols else None):
            item.setSymbol(curve.symbol if has_symbols else None)
        item.setData(x, y)
        summary = series.summary()
        if curve.percentiles and summary is not None:
            for which, value in (("p50", summary.p50), ("p95", summary.p95)):
                self._lines[curve.metric, which].setValue(value)
                self._lines[curve.metric, which].setVisible(True)
        self._summaries[curve.metric] = summary
        self._write_legend(curve)

    def _write_legend(self, curve: CurveStyle) -> None:
        definition = define(curve.metric)
        summary = self._summaries.get(curve.metric)
        glyph = f'<span style="color:{self._theme.ink(curve.ink)}">{_GLYPHS[curve.symbol]}</span>'
        value = ""
        if summary is not None:
            figure = f"{number(summary.last, definition.unit)} {unit_name(definition.unit)}".rstrip()
            value = f' <span style="color:{self._theme.muted}">{figure}</span>'
        legend = self._legends[curve.metric]
        legend.setText(f"{glyph} {definition.name}{value}")
        legend.setToolTip(tooltip(curve.metric, summary))

    def _fit(self, metrics: LatencyMetrics) -> None:
        left, right, newest, count = 0.0, 0.0, 0.0, 0
        for curve in self.style_of_plot.curves:
            series = metrics.series[curve.metric]
            if not len(series):
                continue
            shown = series.y if self.style_of_plot.seconds else series.y[-self.style_of_plot.most :]
            highest = float(np.max(shown))
            left, right = (left, max(right, highest)) if curve.on_right else (max(left, highest), right)
            newest, count = max(newest, float(series.x[-1])), max(count, len(series))
        if self._left.fit(left):
            self.plot.setYRange(0, self._left.upper, padding=0)
        if self._right_box is not None and self._right_range.fit(right):
            self._right_box.setYRange(0, self._right_range.upper, padding=0)
        if self.style_of_plot.seconds is not None:
            high = max(newest, self.style_of_plot.seconds)
            self._set_x_range(high - self.style_of_plot.seconds, high)
        else:
            window = min(
                next(size for size in _WINDOWS if size >= min(count, MAX_POINTS)), self.style_of_plot.most
            )
            high = max(newest, float(window)) + 0.5
            self._set_x_range(high - window, high)

    def _lay_out(self) -> None:
        head = QHBoxLayout()
        head.setSpacing(14)
        for legend in self._legends.values():
            legend.setTextFormat(Qt.TextFormat.RichText)
            legend.setMinimumWidth(1)  # in a narrow window a legend is cut rather than the plot
            head.addWidget(legend)
        head.addStretch(1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 9, 8, 6)
        layout.setSpacing(2)
        layout.addLayout(head)
        layout.addWidget(self.plot, 1)
