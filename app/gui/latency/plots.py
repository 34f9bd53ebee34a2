"""One live plot: a card with a title, the newest value, the curves of some series, and their legend.

All plots by turn have the same x axis, on which every point stands at its turn. Several values of a turn
are one point at their median with a bar from the smallest to the largest. Values far above the others do
not change the scale; above the range they are triangles at the upper edge. A turn with an outage is marked.
A curve differs from its neighbours by colour, by line style and by the shape of its points. No auto-range,
thin pens and no antialiasing, to be cheap to redraw.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QColor, QFont, QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QVBoxLayout, QWidget

from app.gui.common.plain_text import ElidedLabel, MarkupLabel, PlainLabel, set_markup_tip
from app.gui.common.themes import Ink, Theme, Tone
from app.gui.common.turn_times import LatencyStage
from app.gui.latency.definitions import (
    PlotName,
    define,
    number,
    plot_text,
    plot_title,
    ratio_name,
    real_time_name,
    short_name,
    tooltip,
    turn_axis_name,
    unit_name,
)
from app.gui.latency.metrics import (
    SHOWN_TURNS,
    LatencyMetrics,
    LevelSeries,
    Metric,
    SeriesSummary,
    TurnPoints,
    TurnSeries,
)

_SMALLEST_BOUND = 1e-9
_OUTLIER = 3.0
"""Times the median, beyond which one of the largest values does not count for the range."""
_ROUND_STEPS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
Points = NDArray[np.float64]
_TRIANGLE_HEIGHT = 0.96
"""Height of the triangles, as a share of the range."""
_MARK_SYMBOLS = {"interrupt": "t", "resume": "t1", "cut": "x"}
_NOTHING: Points = np.zeros(0)
_FEWEST_TURNS = 20
_GLYPHS = {"o": "●", "s": "■", "t1": "▲", None: "▬"}
_TICK_POINTS = 7.5
_AXIS_WIDTH, _AXIS_HEIGHT = 34, 16
"""Room for the numbers of an axis; its title needs more."""
_TITLE_WIDTH = 14
_MARGIN = 8
"""At the right of a plot."""
_ENTRY_GAP = 14
"""Between two entries of a legend."""


def round_up(value: float) -> float:
    """The next of 1, 1.5, 2, 3, 4, 5, 6, 8, 10 times a power of ten."""
    value = max(value, _SMALLEST_BOUND)
    scale = 10.0 ** math.floor(math.log10(value))
    return next(step * scale for step in (*_ROUND_STEPS, 20.0) if step * scale >= value * (1 - 1e-9))


def robust_maximum(values: NDArray[np.float64]) -> float:
    """The largest value that is no outlier; 0 without values. An outlier is above three times the median, and
    at most one value in ten (or one of three to nine) is one."""
    ordered = np.sort(values)
    if len(ordered) < 3:
        return float(ordered[-1]) if len(ordered) else 0.0
    limit = _OUTLIER * float(np.median(ordered))
    end = len(ordered) - 1
    while end > 0 and len(ordered) - 1 - end < max(1, len(ordered) // 10) and ordered[end] > limit:
        end -= 1
    return float(ordered[end])


class AxisRange:
    """Upper bound of an axis that starts at 0.

    Attributes:
        upper: the bound now.
        patience: how many values in a row must need less than half of it before it shrinks.
    """

    def __init__(self, smallest: float, patience: int = 40) -> None:
        self.smallest = smallest
        self.patience = patience
        self.upper = smallest
        self._calm = 0

    def reset(self) -> None:
        """Start over with the smallest range."""
        self.upper = self.smallest
        self._calm = 0

    def fit_upper(self, highest: float) -> bool:
        """Follow the highest value shown; True if the bound changed."""
        wanted = max(self.smallest, round_up(highest * 1.08))
        if highest <= self.upper and wanted > 0.5 * self.upper:
            self._calm = 0
            return False
        if wanted <= self.upper:
            self._calm += 1
            if self._calm < self.patience:
                return False
        self._calm = 0
        changed = wanted != self.upper
        self.upper = wanted
        return changed


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
        spots = [
            {"pos": (second, _TRIANGLE_HEIGHT * upper), "symbol": _MARK_SYMBOLS[kind]}
            for kind, second in interruptions
        ]
        self.item.setData(spots)

    def set_theme(self, theme: Theme) -> None:
        """Take the colours and the scale of a theme."""
        self.item.setBrush(pg.mkBrush(theme.text))
        self.item.setSize(theme.px(8))


class OutageMarks:
    """Dotted lines from bottom to top where the computer slept or the server was away."""

    def __init__(self, box: pg.ViewBox) -> None:
        self.item = pg.PlotDataItem(antialias=False, connect="pairs")
        box.addItem(self.item, ignoreBounds=True)

    def draw(self, places: Iterable[float], upper: float) -> None:
        """Draw a line at each place of the x axis."""
        x = np.repeat(np.array(sorted(places), dtype=np.float64), 2)
        self.item.setData(x, np.tile((0.0, upper), len(x) // 2))

    def set_theme(self, theme: Theme) -> None:
        """Take the colours and the scale of a theme."""
        self.item.setPen(pg.mkPen(theme.caution, width=theme.px(1), style=Qt.PenStyle.DotLine))


class Curve:
    """The items of one series in a view box.

    Attributes:
        highest: the value that the range must hold; outliers do not count.
    """

    def __init__(self, style: CurveStyle, box: pg.ViewBox, seconds: float | None = None) -> None:
        """`seconds` are drawn of a series over time."""
        self.style = style
        self._seconds = seconds
        self.highest = 0.0
        self.line = pg.PlotDataItem(antialias=False, skipFiniteCheck=True, symbol=style.symbol)
        self.bars = pg.ErrorBarItem(x=_NOTHING, y=_NOTHING, top=_NOTHING, bottom=_NOTHING)
        self.edge = pg.PlotDataItem(antialias=False, pen=None, symbol="t1")
        self.percentiles = {which: pg.InfiniteLine(angle=0) for which in ("p50", "p95")}
        shown = list(self.percentiles.values()) if style.percentiles else []
        for item in (self.bars, self.line, self.edge, *shown):
            box.addItem(item, ignoreBounds=True)
        self._points: TurnPoints | None = None
        self._has_bars = self._is_cut = False
        self.clear()

    def clear(self) -> None:
        """Draw nothing."""
        self.highest = 0.0
        self._points = None
        self.line.setData([], [])
        self.edge.setData([], [])
        self.bars.setData(x=_NOTHING, y=_NOTHING, top=_NOTHING, bottom=_NOTHING)
        for line in self.percentiles.values():
            line.setVisible(False)

    def draw(self, series: TurnSeries | LevelSeries) -> None:
        """Draw the values of a series."""
        if isinstance(series, LevelSeries):
            x, y = series.x, series.y
            if self._seconds is not None and len(x):
                is_shown = x >= x[-1] - self._seconds
                x, y = x[is_shown], y[is_shown]
            x, y = with_gaps(x, y)
            self.line.setData(x, y)
            self.highest = float(y.max()) if len(y) else 0.0
            return
        points = self._points = series.points()
        self._has_bars = series.per_call
        self._draw_points(points, np.inf)
        self.highest = robust_maximum(points.highest)
        summary = series.summary()
        for which, line in self.percentiles.items():
            line.setVisible(summary is not None)
            if summary is not None:
                line.setValue(getattr(summary, which))

    def mark_edge(self, upper: float) -> None:
        """Mark what is above the range, and draw the rest of it no further than to the edge."""
        if self._points is None:
            return
        outside = self._points.turns[self._points.highest > upper]
        self.edge.setData(outside, np.full(len(outside), _TRIANGLE_HEIGHT * upper))
        if len(outside) or self._is_cut:
            self._is_cut = len(outside) > 0
            self._draw_points(self._points, upper)

    def _draw_points(self, points: TurnPoints, upper: float) -> None:
        lowest, medians, highest = (
            np.minimum(values, upper) for values in (points.lowest, points.medians, points.highest)
        )
        self.line.setData(points.turns, medians)
        if self._has_bars:
            self.bars.setData(x=points.turns, y=medians, top=highest - medians, bottom=medians - lowest)

    def set_theme(self, theme: Theme) -> None:
        """Take the colours and the scale of a theme."""
        colour = theme.ink(self.style.ink)
        # NOTE: wide lines of hundreds of points take far longer to draw; a curve by turn has few points.
        width = 1 if self.style.symbol is None else theme.px(1)
        style = Qt.PenStyle.DashLine if self.style.dashed else Qt.PenStyle.SolidLine
        self.line.setPen(pg.mkPen(colour, width=width, style=style))
        faded = QColor(colour)
        faded.setAlphaF(0.45)
        self.bars.setData(pen=pg.mkPen(faded, width=width))
        for item, size in ((self.line, 5), (self.edge, 7)):
            item.setSymbolPen(None)
            item.setSymbolBrush(pg.mkBrush(colour))
            item.setSymbolSize(theme.px(size))
        for which, line in self.percentiles.items():
            dash = Qt.PenStyle.DotLine if which == "p95" else Qt.PenStyle.DashLine
            line.setPen(pg.mkPen(colour, width=width, style=dash))
        if self.style.filled:
            area = QColor(colour)
            area.setAlphaF(0.28)
            self.line.setFillLevel(0.0)
            self.line.setFillBrush(pg.mkBrush(area))


@dataclass(frozen=True, slots=True)
class PlotStyle:
    """One plot. `seconds` is the span of a time axis; without it x is the turn. With `headline` the newest
    value of the first curve is shown in large type."""

    name: PlotName
    curves: tuple[CurveStyle, ...]
    smallest: float
    reference: float | None = None
    seconds: float | None = None
    headline: bool = False


def turn_window(first: int, newest: int) -> tuple[float, float]:
    """Range of the axis of turns: 20 of them, 40 once there are more, the newest at the right."""
    shown = _FEWEST_TURNS if newest - first < _FEWEST_TURNS else SHOWN_TURNS
    last = max(newest, first + shown - 1)
    return last - shown + 0.5, last + 0.5


def _unbroken(text: str) -> str:
    return text.replace(" ", "&nbsp;")


PREFILL_CURVES = (
    CurveStyle(Metric.PREFILL_AT_COMMIT, LatencyStage.PREFILL, "o"),
    CurveStyle(Metric.PREFILL_SPEAKING, Tone.TEXT, "s", dashed=True),
)
RTF_PLOT = PlotStyle(
    "rtf",
    (
        CurveStyle(Metric.RTF_TOTAL, Tone.ACCENT, "o"),
        CurveStyle(Metric.RTF_STEADY, Tone.TEXT, "s", dashed=True),
    ),
    smallest=1.25,  # so that the number of the line of real time has room in the lowest plot, too
    reference=1.0,
    headline=True,
)
"""Alike in the latency view and in the presentation."""


class _CornerAxis(pg.AxisItem):
    """A bottom axis with its title in the corner at the left, beside its numbers instead of below them."""

    def resizeEvent(self, event: object = None) -> None:
        """Put the title there."""
        super().resizeEvent(event)
        if self.label is not None:
            self.label.setPos(-self.label.boundingRect().width(), 0)


class LivePlot(QFrame):
    """A plot card. `refresh` draws the changes since the last call.

    Attributes:
        title: the name of the plot.
        value, unit: the newest value of the first curve, in large type.
        legend: what each line and mark is, with the newest values.
    """

    def __init__(self, style: PlotStyle, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.style_of_plot = style
        self.setProperty("role", "card")
        self._theme = theme
        self.title, self.value, self.unit = ElidedLabel(), PlainLabel(), PlainLabel()
        self.legend = MarkupLabel()
        self._drawn: dict[Metric, int] = {}
        self._summaries: dict[Metric, SeriesSummary | None] = {}
        self._turns = (0, 0)
        self._outages: tuple[float, ...] = ()
        self._low = 0.0
        """The left edge of the x axis."""
        self._left, self._right = AxisRange(style.smallest), AxisRange(4.0)
        self.plot = pg.PlotWidget(
            background=None, enableMenu=False, axisItems={"bottom": _CornerAxis("bottom")}
        )
        self._right_box: pg.ViewBox | None = None
        self._set_up_plot()
        self._line: pg.InfiniteLine | None = None
        if style.reference is not None:
            self._line = pg.InfiniteLine(style.reference, angle=0)
            self.plot.addItem(self._line, ignoreBounds=True)
        box = self.plot.getPlotItem().getViewBox()
        self.outage_marks = OutageMarks(box)
        self.curves = {
            curve.metric: Curve(curve, self._box_of(curve), style.seconds) for curve in style.curves
        }
        self.marks = InterruptionMarks(box) if style.seconds is not None else None
        self._lay_out()
        self.set_theme(theme)

    def sizeHint(self) -> QSize:
        """The minimum: with wrapped text the view is as high as the hints of its parts."""
        return self.minimumSizeHint()

    def refresh(self, metrics: LatencyMetrics) -> bool:
        """Draw the series that changed, and follow the turns; True if a series had changed."""
        changed = [
            metric for metric in self.curves if metrics.curve(metric).total != self._drawn.get(metric, 0)
        ]
        for metric in changed:
            series = metrics.curve(metric)
            self._drawn[metric] = series.total
            self.curves[metric].draw(series)
            self._summaries[metric] = series.summary()
        if changed:
            self._fit()
            self._write_legend()
            self._write_headline()
            self._describe()
        self._follow(metrics)
        if self.marks is not None:
            shown = [(kind, second) for kind, second in metrics.interruptions if second >= self._low]
            self.marks.draw(shown, self._left.upper)
        self._mark_outages(metrics)
        return bool(changed)

    def retranslate(self) -> None:
        """Use the words of the current language."""
        title, text = plot_title(self.style_of_plot.name), plot_text(self.style_of_plot.name)
        self.title.setText(title)
        self.setAccessibleName(title)
        self.plot.setAccessibleName(title)
        set_markup_tip(self, f"<qt><b>{title}</b><br>{text}</qt>")
        self._describe()
        self._write_legend()
        self._write_headline()
        self._write_axes()

    def reset(self) -> None:
        """Empty the plot and start over with the smallest range."""
        self._drawn.clear()
        self._summaries.clear()
        self._turns = (0, 0)
        for curve in self.curves.values():
            curve.clear()
        if self.marks is not None:
            self.marks.draw((), 0.0)
        self._outages = ()
        self.outage_marks.draw((), 0.0)
        self._write_legend()
        self._write_headline()
        self._left.reset()
        self._right.reset()
        self._set_y_ranges()
        self._set_x_range(*self._first_window())

    def set_theme(self, theme: Theme) -> None:
        """Take the colours and the scale of a theme."""
        self._theme = theme
        px, item = theme.px, self.plot.getPlotItem()
        font = QFont(self.font())
        font.setPointSizeF(_TICK_POINTS * theme.scale)
        for name in ("left", "bottom", "right"):
            axis = item.getAxis(name)
            axis.setPen(pg.mkPen(theme.grid, width=px(1)))
            axis.setTextPen(pg.mkPen(theme.muted, width=1))
            axis.setStyle(tickFont=font, tickLength=0, tickTextOffset=px(4), hideOverlappingLabels=True)
        item.getAxis("bottom").setStyle(hideOverlappingLabels=px(_MARGIN))  # the number of the last turn
        item.getAxis("left").setWidth(px(_AXIS_WIDTH + _TITLE_WIDTH))
        item.getAxis("bottom").setHeight(px(_AXIS_HEIGHT))
        if self._right_box is not None:
            item.getAxis("right").setWidth(px(_AXIS_WIDTH + _TITLE_WIDTH))
        item.setContentsMargins(0, px(2), px(_MARGIN), 0)
        self.plot.setMinimumHeight(px(88))
        if self._line is not None:
            self._line.setPen(pg.mkPen(theme.text, width=px(1), style=Qt.PenStyle.DashLine))
        for curve in self.curves.values():
            curve.set_theme(theme)
        for marks in (self.marks, self.outage_marks):
            if marks is not None:
                marks.set_theme(theme)
        self.plot.setBackground(theme.surface)
        self._layout.setContentsMargins(px(12), px(6), px(8), px(4))
        self._head.setSpacing(px(4))
        self.retranslate()

    def _set_up_plot(self) -> None:
        plot, item = self.plot, self.plot.getPlotItem()
        plot.setFrameShape(QFrame.Shape.NoFrame)
        plot.setMouseEnabled(False, False)
        plot.hideButtons()
        plot.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        plot.disableAutoRange()
        for name in ("left", "bottom", "right"):
            item.getAxis(name).enableAutoSIPrefix(False)
            item.getAxis(name).setZValue(-1)  # the grid, which would cover the line of real time
        item.getAxis("left").setGrid(255)
        if any(curve.on_right for curve in self.style_of_plot.curves):
            self._right_box = pg.ViewBox(enableMenu=False, enableMouse=False)
            item.showAxis("right")
            item.scene().addItem(self._right_box)
            item.getAxis("right").linkToView(self._right_box)
            self._right_box.disableAutoRange()
            item.getViewBox().sigResized.connect(self._align_right_box)
        self._set_y_ranges()
        self._set_x_range(*self._first_window())

    def _box_of(self, curve: CurveStyle) -> pg.ViewBox:
        is_right = curve.on_right and self._right_box is not None
        return self._right_box if is_right else self.plot.getPlotItem().getViewBox()

    def _align_right_box(self) -> None:
        assert self._right_box is not None
        self._right_box.setGeometry(self.plot.getPlotItem().getViewBox().sceneBoundingRect())

    def _first_window(self) -> tuple[float, float]:
        seconds = self.style_of_plot.seconds
        return turn_window(1, 1) if seconds is None else (0.0, seconds)

    def _set_x_range(self, low: float, high: float) -> None:
        self._low = low
        self.plot.setXRange(low, high, padding=0)
        if self._right_box is not None:
            self._right_box.setXRange(low, high, padding=0)

    def _set_y_ranges(self) -> None:
        self.plot.setYRange(0, self._left.upper, padding=0)
        if self._right_box is not None:
            self._right_box.setYRange(0, self._right.upper, padding=0)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Break the legend into lines anew."""
        super().resizeEvent(event)
        self._write_legend()

    def _write_legend(self) -> None:
        """As many entries a line as fit; those of the curves come first, with the newest value of each but
        the one that is in large type."""
        entries: list[tuple[str, str, str, str]] = []
        for metric, curve in self.curves.items():
            is_headline = self.style_of_plot.headline and not entries
            figure = "" if is_headline else self._figure(metric)
            line = "" if curve.style.symbol is None else "╌" if curve.style.dashed else "─"
            entries.append(
                (
                    self._theme.ink(curve.style.ink),
                    _GLYPHS[curve.style.symbol] + line,
                    short_name(metric),
                    figure,
                )
            )
        muted = self._theme.muted
        if self._line is not None:
            entries.append((self._theme.text, "╌╌", real_time_name(), ""))
        if any(curve.percentiles for curve in self.style_of_plot.curves):
            entries += [(muted, "╌╌", "p50", ""), (muted, "┈┈", "p95", "")]
        self.legend.ensurePolished()
        metrics, room = self.legend.fontMetrics(), self.contentsRect().width() - self._theme.px(20)
        spaces = math.ceil(self._theme.px(_ENTRY_GAP) / metrics.horizontalAdvance(" "))
        gap = spaces * metrics.horizontalAdvance(" ")
        lines, used = [""], 0
        for colour, glyph, name, figure in entries:
            width = metrics.horizontalAdvance(f"{glyph} {name} {figure}".rstrip())
            if used and used + gap + width > room:
                lines.append("")
                used = 0
            elif used:
                lines[-1] += "&nbsp;" * spaces
                used += gap
            value = f'&nbsp;<span style="color:{muted}">{_unbroken(figure)}</span>' if figure else ""
            lines[-1] += f'<span style="color:{colour}">{glyph}</span>&nbsp;{_unbroken(name)}{value}'
            used += width
        self.legend.setText("<br>".join(lines))
        set_markup_tip(
            self.legend, "<br>".join(tooltip(metric, self._summaries.get(metric)) for metric in self.curves)
        )

    def _figure(self, metric: Metric) -> str:
        """The newest value of a curve with its unit, "" without one."""
        summary = self._summaries.get(metric)
        if summary is None:
            return ""
        unit = define(metric).unit
        return f"{number(summary.last, unit)} {unit_name(unit, summary.last)}".rstrip()

    def _write_headline(self) -> None:
        if not self.style_of_plot.headline:
            return
        metric = self.style_of_plot.curves[0].metric
        value, _, unit = self._figure(metric).partition(" ")
        self.value.setText(value or "–")
        self.unit.setText(unit)
        self.unit.setVisible(bool(unit))  # without one the value stands at the edge

    def _write_axes(self) -> None:
        item, curves = self.plot.getPlotItem(), self.style_of_plot.curves
        titles = {"bottom": turn_axis_name() if self.style_of_plot.seconds is None else "s"}
        for curve in reversed(curves):
            unit = define(curve.metric).unit
            titles["right" if curve.on_right else "left"] = unit_name(unit, 0.0) or ratio_name()
        size = f"{_TICK_POINTS * self._theme.scale:.1f}pt"
        for name, title in titles.items():
            item.getAxis(name).setLabel(title, **{"color": self._theme.muted, "font-size": size})

    def _describe(self) -> None:
        """What is drawn, for screen readers: a plot is a picture to them."""
        figures = [
            f"{define(metric).name} {self._figure(metric)}" for metric in self.curves if self._figure(metric)
        ]
        text = " ".join([plot_text(self.style_of_plot.name), ", ".join(figures)]).rstrip()
        self.plot.setAccessibleDescription(text)
        self.setAccessibleDescription(text)

    def _mark_outages(self, metrics: LatencyMetrics) -> None:
        """Mark the turns with an outage, or its second."""
        by_turn = self.style_of_plot.seconds is None
        known = metrics.outage_turns if by_turn else metrics.outage_seconds
        places = tuple(float(place) for place in known if place >= self._low)
        if places or self._outages:
            self._outages = places
            self.outage_marks.draw(places, self._left.upper)

    def _fit(self) -> None:
        """Fit the ranges of y; what does not fit is marked."""
        curves = self.curves.values()
        highest = [
            max((c.highest for c in curves if c.style.on_right is right), default=0.0)
            for right in (False, True)
        ]
        is_new = [axis.fit_upper(high) for axis, high in zip((self._left, self._right), highest, strict=True)]
        if any(is_new):
            self._set_y_ranges()
        for curve in curves:
            curve.mark_edge(self._right.upper if curve.style.on_right else self._left.upper)

    def _follow(self, metrics: LatencyMetrics) -> None:
        """Keep the newest turn, or the newest second, in sight."""
        seconds = self.style_of_plot.seconds
        if seconds is not None:
            newest = float(metrics.playback.x[-1]) if len(metrics.playback) else 0.0
            high = max(newest, seconds)
            self._set_x_range(high - seconds, high)
        elif metrics.turns != self._turns:
            self._turns = metrics.turns
            self._set_x_range(*turn_window(*metrics.turns))

    def _lay_out(self) -> None:
        self._head = QHBoxLayout()
        for label, role in ((self.title, "title"), (self.value, "figure"), (self.unit, "unit")):
            label.setProperty("role", role)
        baseline = Qt.AlignmentFlag.AlignBaseline
        self._head.addWidget(self.title, 1, baseline)
        if self.style_of_plot.headline:
            self._head.addWidget(self.value, 0, baseline)
            self._head.addWidget(self.unit, 0, baseline)
        self.legend.setMinimumWidth(1)
        self.legend.setProperty("role", "legend")
        self._layout = QVBoxLayout(self)
        self._layout.setSpacing(2)
        self._layout.addLayout(self._head)
        self._layout.addWidget(self.legend)
        self._layout.addWidget(self.plot, 1)
