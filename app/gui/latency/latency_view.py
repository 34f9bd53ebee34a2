"""The live latency view: six plots, waterfall of the last turn, tiles. Takes timing events, draws on a timer.

Events are collected as they arrive (`add_events`) and drawn at most ten times a second, and only while the
view is visible. All shown values come from one `LatencyMetrics`. GUI thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QHideEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import (
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QPushButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from app.gui.common.plain_text import ElidedLabel, MarkupLabel, PlainLabel, set_markup_tip, set_tip
from app.gui.common.themes import Ink, Theme, Tone
from app.gui.common.translation import FollowsLanguage
from app.gui.common.turn_times import LatencyStage
from app.gui.latency.definitions import define, number, percentiles, tooltip
from app.gui.latency.flow_steps_row import FlowStepsRow
from app.gui.latency.metrics import LatencyMetrics, Metric
from app.gui.latency.plots import PREFILL_CURVES, RTF_PLOT, CurveStyle, LivePlot, PlotStyle
from app.gui.latency.waterfall import WaterfallView
from app.session.events import SpeculationMeasured, SpeculationStats
from engine_runtime.timing import TimingEvent

REDRAW_MS = 100
_TILES: tuple[tuple[Metric, Ink], ...] = (
    (Metric.VOICE_TO_VOICE, Tone.TEXT),
    (Metric.TTFA, Tone.ACCENT),
    (Metric.CONFIRM_TO_SOUND, Tone.ACCENT),
    (Metric.RTF_TOTAL, Tone.ACCENT),
    (Metric.RTF_STEADY, Tone.TEXT),
    (Metric.FIRST_CHUNK_RATIO, Tone.MUTED),
    (Metric.ENDPOINTING, LatencyStage.ENDPOINTING),
    (Metric.PREFILL_SPEAKING, LatencyStage.PREFILL),
    (Metric.PREFILL_AT_COMMIT, LatencyStage.PREFILL),
    (Metric.STEP, LatencyStage.STEP),
    (Metric.TOKEN2MEL, LatencyStage.TOKEN2MEL),
    (Metric.VOCODER, LatencyStage.VOCODER),
)
_COLUMNS = ((900, 6, 3), (500, 3, 2), (0, 2, 1))
"""From which width on the tiles and the plots have so many columns."""
_PLOTS = (
    PlotStyle(
        "prefill",
        (
            *PREFILL_CURVES,
            CurveStyle(Metric.TOKENS_AT_COMMIT, Tone.MUTED, "t1", dashed=True, on_right=True),
        ),
        smallest=10.0,
        headline=True,
    ),
    PlotStyle(
        "vocoder",
        (
            CurveStyle(Metric.VOCODER, LatencyStage.VOCODER, "o"),
            CurveStyle(Metric.TOKEN2MEL, LatencyStage.TOKEN2MEL, "s", dashed=True),
        ),
        smallest=20.0,
        headline=True,
    ),
    RTF_PLOT,
    PlotStyle(
        "response",
        (
            CurveStyle(Metric.VOICE_TO_VOICE, Tone.TEXT, "s", percentiles=True),
            CurveStyle(Metric.TTFA, Tone.ACCENT, "o", percentiles=True),
        ),
        smallest=200.0,
    ),
    PlotStyle(
        "steps",
        (
            CurveStyle(Metric.STEP, LatencyStage.STEP, "o"),
            CurveStyle(Metric.MEMORY, Tone.TEXT, "s", dashed=True, on_right=True),
        ),
        smallest=5.0,
    ),
    PlotStyle(
        "playback",
        (CurveStyle(Metric.PLAYBACK, LatencyStage.DEVICE, None, filled=True),),
        smallest=200.0,
        seconds=30.0,
    ),
)
"""Those with a headline are what the program exists for: they come first in the view."""


class FigureTile(QFrame):
    """One figure. `ink` is the colour of its edge."""

    def __init__(self, metric: Metric, ink: Ink, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.figure = metric
        self._ink = ink
        self._drawn = -1
        self.setProperty("role", "card")
        self._name, self._value = ElidedLabel(), PlainLabel("–")
        self._unit, self._below = PlainLabel(), PlainLabel(" ")
        roles = ("small", "figure", "unit", "small")
        for label, role in zip((self._name, self._value, self._unit, self._below), roles, strict=True):
            label.setProperty("role", role)
        line = QHBoxLayout()
        line.setSpacing(4)
        line.addWidget(self._value, 0, Qt.AlignmentFlag.AlignBaseline)
        line.addWidget(self._unit, 1, Qt.AlignmentFlag.AlignBaseline)
        figures = QVBoxLayout()
        figures.setSpacing(0)
        figures.addWidget(self._name)
        figures.addLayout(line)
        figures.addWidget(self._below)
        self._edge = QFrame()
        layout = QHBoxLayout(self)
        layout.setContentsMargins(7, 5, 0, 5)
        layout.setSpacing(7)
        layout.addWidget(self._edge)
        layout.addLayout(figures, 1)
        self._below.setMinimumWidth(1)
        self._name.setContentsMargins(0, 0, 6, 0)
        self.set_theme(theme)

    def refresh(self, metrics: LatencyMetrics, force: bool = False) -> None:
        """Show the figure if it has a new value."""
        series = metrics.curve(self.figure)
        if series.total == self._drawn and not force:
            return
        self._drawn = series.total
        definition, summary = define(self.figure), series.summary()
        self._name.setText(definition.name)
        self._value.setText("–" if summary is None else number(summary.last, definition.unit))
        self._unit.setText("" if summary is None else definition.unit)
        self._below.setText(" " if summary is None else percentiles(summary, definition.unit))
        set_markup_tip(self, tooltip(self.figure, summary))
        self.setAccessibleName(definition.name)
        spoken = f"{self._value.text()} {definition.unit}, {self._below.text()}. "
        self.setAccessibleDescription(("" if summary is None else spoken) + definition.text)

    def set_theme(self, theme: Theme) -> None:
        """Take the colours and the scale of a theme."""
        self.setMinimumWidth(theme.px(112))
        self._edge.setFixedWidth(theme.px(3))
        self._edge.setStyleSheet(f"background: {theme.ink(self._ink)}; border: none; border-radius: 1px;")


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
            "server": self.tr("Speculative replies are off: the server cannot take one back."),
            "slow_engine": self.tr("Speculative replies are off: the engine is slower than real time."),
            "slow_roll_back": self.tr(
                "Speculative replies are off: the engine takes too long to recover from a discarded one."
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


class LatencyView(FollowsLanguage, QScrollArea):
    """Tiles, waterfall and plots of one session.

    Signals:
        cleared: the figures start over.
        present_wanted: the figures shall cover the screen.

    Attributes:
        metrics: the model that is drawn.
        longest_redraw_ms: the longest redraw of this view so far, drawing of tiles and curve data included.
    """

    cleared = Signal()
    present_wanted = Signal()

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.metrics = LatencyMetrics()
        self.longest_redraw_ms = 0.0
        self._seen = -1
        self._scale = theme.scale
        self._columns = (0, 0)
        self._title, self._waterfall_title = PlainLabel(), PlainLabel()
        self.outages = PlainLabel()
        self._waterfall_sum = MarkupLabel()
        self.speculation = SpeculationLine()
        self.flow_steps = FlowStepsRow()
        self.tiles = [FigureTile(metric, stage, theme) for metric, stage in _TILES]
        self.waterfall = WaterfallView(theme)
        self.plots: dict[str, LivePlot] = {style.name: LivePlot(style, theme) for style in _PLOTS}
        self.clear_button, self.present_button = QPushButton(), QPushButton()
        for button in (self.clear_button, self.present_button):
            button.setProperty("role", "link")
        self.present_button.clicked.connect(self.present_wanted)
        self.clear_button.clicked.connect(self.clear)
        self._lay_out()
        self._timer = QTimer(self)
        self._timer.setInterval(REDRAW_MS)
        self._timer.timeout.connect(self.redraw)
        self.retranslate()

    def add_events(self, events: Iterable[TimingEvent]) -> None:
        """Take events; they are drawn with the next tick of the timer."""
        self.metrics.add_events(events)

    def redraw(self) -> None:
        """Draw new values. Called by the timer; returns immediately if there are none."""
        if self.metrics.version == self._seen:
            return
        started = time.perf_counter()
        self._seen = self.metrics.version
        for tile in self.tiles:
            tile.refresh(self.metrics)
        for plot in self.plots.values():
            plot.refresh(self.metrics)
        self.flow_steps.refresh(self.metrics)
        self._show_waterfall()
        self._show_outages()
        self.longest_redraw_ms = max(self.longest_redraw_ms, (time.perf_counter() - started) * 1e3)

    def hide_controls(self) -> None:
        """Show figures alone, as for a picture."""
        for part in (self._title, self.present_button, self.clear_button):
            part.hide()
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)

    def show_metrics(self, metrics: LatencyMetrics) -> None:
        """Draw other figures."""
        self.metrics, self._seen = metrics, -1
        self.redraw()

    @property
    def least_height(self) -> int:
        """The height in which all of it is seen."""
        body = self.widget()
        return 0 if body is None else body.minimumSizeHint().height()

    def clear(self) -> None:
        """Start over with empty figures and the smallest scales."""
        self.metrics = LatencyMetrics()
        self._seen = -1
        for plot in self.plots.values():
            plot.reset()
        self.flow_steps.refresh(self.metrics)
        self.retranslate()
        self.cleared.emit()

    def set_theme(self, theme: Theme) -> None:
        """Take the colours and the scale of a theme."""
        self._scale = theme.scale
        self._place()
        for tile in self.tiles:
            tile.set_theme(theme)
        for plot in self.plots.values():
            plot.set_theme(theme)
        self.waterfall.set_theme(theme)

    def retranslate(self) -> None:
        """Use the words of the current language."""
        self._title.setText(self.tr("Latency, live"))
        self.setAccessibleName(self._title.text())
        self.present_button.setText(self.tr("Present"))
        set_tip(
            self.present_button,
            self.tr("Captions, waterfall and plots for a room, full screen (F11)"),
        )
        self.clear_button.setText(self.tr("Clear"))
        set_tip(self.clear_button, self.tr("Reset figures, counters and exported timings"))
        self._waterfall_title.setText(self.tr("Last turn: end of speech to first sound"))
        for plot in self.plots.values():
            plot.retranslate()
        for tile in self.tiles:
            tile.refresh(self.metrics, force=True)
        self.waterfall.retranslate()
        self.speculation.retranslate()
        self.flow_steps.retranslate()
        self._show_waterfall()
        self._show_outages()

    def showEvent(self, event: QShowEvent) -> None:
        """Draw while visible."""
        self._timer.start()
        super().showEvent(event)

    def hideEvent(self, event: QHideEvent) -> None:
        """Stop drawing while hidden or minimized; events are still collected."""
        self._timer.stop()
        super().hideEvent(event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Use fewer columns if the view is narrow."""
        self._place()
        super().resizeEvent(event)

    def _place(self) -> None:
        """Use as many columns as the width allows."""
        width = self.width() / self._scale
        columns = next((tiles, plots) for least, tiles, plots in _COLUMNS if width >= least)
        if columns == self._columns:
            return
        self._columns = columns
        is_wide = columns == _COLUMNS[0][1:]
        # The sum is beside the title, or below it if both together are too wide.
        self._caption.addWidget(self._waterfall_sum, *((0, 1) if is_wide else (1, 0)))
        self.flow_steps.set_wide(is_wide=is_wide)
        _fill(self._tile_grid, self.tiles, columns[0])
        plots = list(self.plots.values())
        _fill(self._main_grid, [plot for plot in plots if plot.style_of_plot.headline], columns[1])
        _fill(self._plot_grid, [plot for plot in plots if not plot.style_of_plot.headline], columns[1])

    def _show_waterfall(self) -> None:
        waterfall = self.metrics.waterfall()
        self.waterfall.show_waterfall(waterfall)
        if waterfall is None:
            self._waterfall_sum.setText(self.tr("no spoken reply yet"))
            return
        if waterfall.reaches_device:
            end = self.tr("to the loudspeaker")
        elif waterfall.total_ms(LatencyStage.HOLD):
            end = self.tr("to the start of playback")
        else:
            end = self.tr("to the first sample")
        total, other = number(waterfall.end_ms, "ms"), number(waterfall.other_ms, "ms")
        text = self.tr("<b>%1 ms</b> %2, %3 ms of it between the stages")
        self._waterfall_sum.setText(text.replace("%1", total).replace("%2", end).replace("%3", other))

    def _show_outages(self) -> None:
        count = self.metrics.outages
        self.outages.setText("┊ " + self.tr("outages, not counted: %1").replace("%1", str(count)))
        tip = self.tr(
            "How often the computer slept or the server was unreachable, at the dotted lines of the plots. "
            "The times of such turns are in no figure."
        )
        set_tip(self.outages, tip)
        self.outages.setAccessibleDescription(tip)
        self.outages.setVisible(count > 0)

    def _lay_out(self) -> None:
        self.setProperty("role", "reading")
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)  # keys scroll it; a click leaves the focus where it is
        for label, role in (
            (self._title, "hint-title"),
            (self._waterfall_title, "title"),
            (self._waterfall_sum, "small"),
            (self.outages, "small"),
        ):
            label.setProperty("role", role)
        head = QHBoxLayout()
        head.addWidget(self._title)
        head.addStretch(1)
        head.addWidget(self.outages)
        head.addWidget(self.present_button)
        head.addWidget(self.clear_button)
        card = QFrame()
        card.setProperty("role", "card")
        self._waterfall_sum.setMinimumWidth(1)
        self._caption = QGridLayout()
        self._caption.setColumnStretch(0, 1)
        self._caption.addWidget(self._waterfall_title, 0, 0)
        inside = QVBoxLayout(card)
        inside.setContentsMargins(14, 9, 14, 8)
        inside.setSpacing(4)
        inside.addLayout(self._caption)
        inside.addWidget(self.waterfall)
        inside.addWidget(self.speculation)
        self._main_grid, self._tile_grid, self._plot_grid = QGridLayout(), QGridLayout(), QGridLayout()
        for grid in (self._main_grid, self._tile_grid, self._plot_grid):
            grid.setSpacing(8)
        self._place()
        body = QWidget()
        body.setProperty("role", "plain")
        layout = QVBoxLayout(body)
        layout.setContentsMargins(14, 12, 14, 12)
        layout.setSpacing(8)
        layout.addLayout(head)
        layout.addLayout(self._main_grid, 3)
        layout.addWidget(card)
        layout.addLayout(self._tile_grid)
        layout.addWidget(self.flow_steps)
        layout.addLayout(self._plot_grid, 2)
        self.setWidget(body)


def _fill(grid: QGridLayout, widgets: Sequence[QWidget], columns: int) -> None:
    """Place widgets row by row. The first one is wide enough for the last row to be full."""
    first, *rest = widgets
    span = 1 + -len(widgets) % columns
    grid.addWidget(first, 0, 0, 1, span)
    for index, widget in enumerate(rest, start=span):
        grid.addWidget(widget, index // columns, index % columns)
    for column in range(grid.columnCount()):
        grid.setColumnStretch(column, 1 if column < columns else 0)
