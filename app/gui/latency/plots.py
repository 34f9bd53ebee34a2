"""One live plot: a card with the curves of some series, and a legend with their newest values.

All plots by turn have the same x axis, on which every point stands at its turn. Values far above the others
do not change the scale. No auto-range, to be cheap to redraw. A curve differs from its neighbours by colour,
by line style and by the shape of its points.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyqtgraph as pg
from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QFont, QPaintEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from app.gui.common.plain_text import MarkupLabel, PlainLabel, set_markup_tip
from app.gui.common.themes import Theme
from app.gui.latency.axis_range import AxisRange
from app.gui.latency.curves import Curve, CurveStyle, InterruptionMarks
from app.gui.latency.definitions import define, number, tooltip, unit_name
from app.gui.latency.metrics import LatencyMetrics, Metric
from app.gui.latency.series import SHOWN_TURNS, SeriesSummary

_FEWEST_TURNS = 20
_GLYPHS = {"o": "●", "s": "■", "t1": "▲", None: "▬"}


@dataclass(frozen=True, slots=True)
class PlotStyle:
    """One plot. `seconds` is the span of a time axis; without it x is the turn."""

    curves: tuple[CurveStyle, ...]
    smallest: float
    reference: float | None = None
    seconds: float | None = None


def turn_window(first: int, newest: int) -> tuple[float, float]:
    """Range of the axis of turns: 20 of them, 40 once there are more, the newest at the right."""
    shown = _FEWEST_TURNS if newest - first < _FEWEST_TURNS else SHOWN_TURNS
    last = max(newest, first + shown - 1)
    return last - shown + 0.5, last + 0.5


class _SpareLabel(PlainLabel):
    """A text that is shown only where there is room for all of it."""

    def paintEvent(self, event: QPaintEvent) -> None:
        """Draw the text, or nothing."""
        if self.width() >= self.sizeHint().width():
            super().paintEvent(event)


class LivePlot(QFrame):
    """A plot card. `refresh` draws the changes since the last call."""

    def __init__(self, style: PlotStyle, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.style_of_plot = style
        self.setProperty("role", "card")
        self._theme = theme
        self._legends = {curve.metric: MarkupLabel() for curve in style.curves}
        self._reference = _SpareLabel()
        self._drawn: dict[Metric, int] = {}
        self._summaries: dict[Metric, SeriesSummary | None] = {}
        self._turns = (0, 0)
        self._left, self._right = AxisRange(style.smallest), AxisRange(4.0)
        self.plot = pg.PlotWidget(background=None, enableMenu=False)
        self._right_box: pg.ViewBox | None = None
        self._set_up_plot()
        self._line: pg.InfiniteLine | None = None
        if style.reference is not None:
            self._line = pg.InfiniteLine(style.reference, angle=0)
            self.plot.addItem(self._line, ignoreBounds=True)
        self.curves = {curve.metric: Curve(curve, self._box_of(curve)) for curve in style.curves}
        self.marks: InterruptionMarks | None = None
        if style.seconds is not None:
            self.marks = InterruptionMarks(self.plot.getPlotItem().getViewBox())
        self._lay_out()
        self.set_theme(theme)

    def sizeHint(self) -> QSize:
        """The minimum: with wrapped text the view is as high as the hints of its parts."""
        return self.minimumSizeHint()

    def set_title(self, title: str, description: str) -> None:
        """Name the plot; `description` is for screen readers."""
        self.setAccessibleName(title)
        set_markup_tip(self, f"<qt><b>{title}</b><br>{description}</qt>")
        self.plot.setAccessibleName(title)
        self.plot.setAccessibleDescription(description)

    def name_reference(self, text: str) -> None:
        """Name the reference line, if there is one, in the legend."""
        self._reference.setText(f"┄ {text}" if self._line is not None else "")

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
            self._write_legend(metric)
        if changed:
            self._fit()
        if self.marks is not None:
            self.marks.draw(metrics.interruptions, self._left.upper)
        self._follow(metrics)
        return bool(changed)

    def retranslate(self) -> None:
        """Write the legend again in the current language."""
        for metric in self.curves:
            self._write_legend(metric)

    def reset(self) -> None:
        """Empty the plot and start over with the smallest range."""
        self._drawn.clear()
        self._summaries.clear()
        self._turns = (0, 0)
        for metric, curve in self.curves.items():
            curve.clear()
            self._write_legend(metric)
        if self.marks is not None:
            self.marks.draw((), 0.0)
        self._left.reset()
        self._right.reset()
        self._set_y_ranges()
        self._set_x_range(*self._first_window())

    def set_theme(self, theme: Theme) -> None:
        """Take the colours of a theme."""
        self._theme = theme
        item = self.plot.getPlotItem()
        for name in ("left", "bottom", "right"):
            axis = item.getAxis(name)
            axis.setPen(pg.mkPen(theme.grid, width=1))
            axis.setTextPen(pg.mkPen(theme.muted, width=1))
        if self._line is not None:
            self._line.setPen(pg.mkPen(theme.muted, width=1, style=Qt.PenStyle.DashLine))
        for curve in self.curves.values():
            curve.set_colour(theme.ink(curve.style.ink))
        if self.marks is not None:
            self.marks.set_colour(theme.text)
        self.plot.setBackground(theme.surface)
        self.retranslate()

    def _set_up_plot(self) -> None:
        plot, item = self.plot, self.plot.getPlotItem()
        plot.setFrameShape(QFrame.Shape.NoFrame)
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
        if any(curve.on_right for curve in self.style_of_plot.curves):
            self._right_box = pg.ViewBox(enableMenu=False, enableMouse=False)
            item.showAxis("right")
            item.getAxis("right").setWidth(26)
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
        self.plot.setXRange(low, high, padding=0)
        if self._right_box is not None:
            self._right_box.setXRange(low, high, padding=0)

    def _set_y_ranges(self) -> None:
        self.plot.setYRange(0, self._left.upper, padding=0)
        if self._right_box is not None:
            self._right_box.setYRange(0, self._right.upper, padding=0)

    def _write_legend(self, metric: Metric) -> None:
        definition, summary = define(metric), self._summaries.get(metric)
        style = self.curves[metric].style
        glyph = f'<span style="color:{self._theme.ink(style.ink)}">{_GLYPHS[style.symbol]}</span>'
        value = ""
        if summary is not None:
            figure = (
                f"{number(summary.last, definition.unit)} {unit_name(definition.unit, summary.last)}".rstrip()
            )
            value = f' <span style="color:{self._theme.muted}">{figure}</span>'
        legend = self._legends[metric]
        legend.setText(f"{glyph} {definition.name}{value}")
        set_markup_tip(legend, tooltip(metric, summary))

    def _fit(self) -> None:
        """Fit the ranges of y; what does not fit is marked."""
        curves = self.curves.values()
        highest = [
            max((c.highest for c in curves if c.style.on_right is right), default=0.0)
            for right in (False, True)
        ]
        is_new = [axis.fit(high) for axis, high in zip((self._left, self._right), highest, strict=True)]
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
        head = QHBoxLayout()
        head.setSpacing(14)
        for legend in self._legends.values():
            legend.setMinimumWidth(1)  # in a narrow window a legend is cut rather than the plot
            legend.setProperty("role", "legend")
            head.addWidget(legend)
        self._reference.setProperty("role", "small")
        self._reference.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self._reference.setMinimumWidth(1)
        self._reference.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        head.addWidget(self._reference, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 9, 8, 6)
        layout.setSpacing(2)
        layout.addLayout(head)
        layout.addWidget(self.plot, 1)
