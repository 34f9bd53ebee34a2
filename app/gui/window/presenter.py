"""The window for a room full of people: captions, waterfall of the present turn as it happens, three plots.

In: the figures of the latency view, questions and replies, the badge of the main window. Out: `left`. Texts
grow with the window, so that they are legible from ten metres on a projector of 1280 x 720 and on a screen of
3840 x 2160 alike. GUI thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from PySide6.QtCore import QSize, Qt, QTimer, Signal
from PySide6.QtGui import QCloseEvent, QHideEvent, QKeySequence, QResizeEvent, QShortcut, QShowEvent
from PySide6.QtWidgets import (
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QPushButton,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from app.gui.common import themes
from app.gui.common.fitting_area import FittingArea
from app.gui.common.icons import Icons
from app.gui.common.notices import ErrorBanner, NoticeLine
from app.gui.common.plain_text import ElidedLabel, MarkupLabel, PlainLabel, set_tip
from app.gui.common.themes import Theme
from app.gui.common.translation import FollowsLanguage
from app.gui.common.turn_times import LatencyStage, Waterfall
from app.gui.conversation.latest_exchange import LatestExchange
from app.gui.latency.definitions import number, stage_name, stage_sentence
from app.gui.latency.metrics import LatencyMetrics, Metric
from app.gui.latency.plots import PREFILL_CURVES, RTF_PLOT, CurveStyle, LivePlot, PlotStyle
from app.gui.latency.waterfall import WaterfallView
from app.gui.window.state_badge import StateBadge

REDRAW_MS = 50
_USUAL = QSize(1280, 720)
_SMALLEST = QSize(640, 360)
_SCALE = 1.5
"""Scale of the theme at the usual size."""
_CAPTION_LINES = 2
_LONGEST_CAPTION = 400
_LEAST_PLOT = 24
_PLOTS = (
    PlotStyle(
        "prefill",
        PREFILL_CURVES,
        smallest=10.0,
        headline=True,
    ),
    PlotStyle(
        "vocoder",
        (CurveStyle(Metric.VOCODER, LatencyStage.VOCODER, "o", percentiles=True),),
        smallest=20.0,
        headline=True,
    ),
    RTF_PLOT,
)


class StageList(FollowsLanguage, QFrame):
    """What happens in each stage, one sentence a line."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", "card")
        self._theme = themes.LIGHT
        self._stages: tuple[LatencyStage, ...] = ()
        self._grid = QGridLayout(self)
        self._grid.setColumnStretch(1, 1)
        self._lines: list[tuple[MarkupLabel, ElidedLabel]] = []

    def show_stages(self, stages: tuple[LatencyStage, ...], theme: Theme) -> None:
        """Explain these."""
        if (stages, theme) == (self._stages, self._theme):
            return
        self._stages, self._theme = stages, theme
        while len(self._lines) < len(stages):
            line = MarkupLabel(), ElidedLabel()
            for column, label in enumerate(line):
                self._grid.addWidget(label, len(self._lines), column)
            self._lines.append(line)
        for index, line in enumerate(self._lines):
            for label in line:
                label.setVisible(index < len(stages))
        self._grid.setContentsMargins(theme.px(10), theme.px(4), theme.px(10), theme.px(4))
        self._grid.setHorizontalSpacing(theme.px(14))
        self._grid.setVerticalSpacing(theme.px(1))
        self.retranslate()

    def retranslate(self) -> None:
        """Use the words of the current language."""
        for stage, (name, sentence) in zip(self._stages, self._lines, strict=False):
            name.setText(
                f'<span style="color:{self._theme.stages[stage]}">■</span> <b>{stage_name(stage)}</b>'
            )
            sentence.setText(stage_sentence(stage))
        self.setAccessibleName(self.tr("The stages of a reply"))
        self.setAccessibleDescription(" ".join(f"{stage_name(s)}: {stage_sentence(s)}" for s in self._stages))


class _Caption(PlainLabel):
    """A wrapped text of a fixed height, of which the layout asks no other height."""

    def hasHeightForWidth(self) -> bool:
        """No."""
        return False


class Presenter(FollowsLanguage, QWidget):
    """Covers the screen of the main window until Escape or F11.

    Signals:
        left: the user wants the ordinary window again.
    """

    left = Signal()

    def __init__(
        self,
        exchange: LatestExchange,
        metrics: Callable[[], LatencyMetrics],
        badge: StateBadge,
        theme: Theme,
        icons: Icons,
    ) -> None:
        """`metrics` gives the figures of the latency view, which start over when it is cleared."""
        super().__init__()
        self._metrics, self._theme = metrics, replace(theme, scale=1.0)
        self._scaled: Theme | None = None
        self._shown_metrics = metrics()
        self._seen = -1
        self._exchange = exchange
        self._larger = 1.0
        """The size that the user chose here; at 1 everything fits."""
        self.badge = StateBadge(theme, icons, names_server=True)
        self.badge.mirror(badge)
        self.model = PlainLabel()
        self.banner, self.notice = ErrorBanner(theme, icons), NoticeLine()
        self.question, self.reply = ElidedLabel(), _Caption()
        self.waterfall_title, self.waterfall_sum = PlainLabel(), PlainLabel()
        self.waterfall = WaterfallView(theme, has_legend=False)
        self.waterfall_legend = PlainLabel()
        self.plots: dict[str, LivePlot] = {style.name: LivePlot(style, theme) for style in _PLOTS}
        self.stages = StageList()
        self.explain_button, self.leave_button = QPushButton(), QPushButton()
        self._lower = QStackedWidget()
        self._lay_out()
        self.explain_button.setCheckable(True)
        self.explain_button.toggled.connect(self._explain)
        self.leave_button.clicked.connect(self.left)
        QShortcut(QKeySequence("E"), self).activated.connect(self.explain_button.toggle)
        self._exchange.changed.connect(self._show_exchange)
        self.banner.changed.connect(self._make_room)
        self._timer = QTimer(self)
        self._timer.setInterval(REDRAW_MS)
        self._timer.timeout.connect(self.redraw)
        self._use_scale()
        self.retranslate()

    def show_model(self, text: str) -> None:
        """Name the model that answers, and where."""
        self.model.setText(text)

    def redraw(self) -> None:
        """Draw new values. Called by the timer; returns immediately if there are none."""
        metrics = self._metrics()
        if metrics is not self._shown_metrics:
            self._shown_metrics, self._seen = metrics, -1
            for plot in self.plots.values():
                plot.reset()
        if metrics.version == self._seen:
            return
        self._seen = metrics.version
        for plot in self.plots.values():
            plot.refresh(metrics)
        waterfall = metrics.waterfall_so_far()
        self.waterfall.show_waterfall(waterfall)
        self.stages.show_stages(self.waterfall.stages, self._scaled or self._theme)
        self._write_sum(waterfall)

    def set_theme(self, theme: Theme) -> None:
        """Take the colours of a theme; its scale is that of the ordinary window."""
        self._theme = replace(theme, scale=1.0)
        self._use_scale()

    def use_scale(self, scale: float) -> None:
        """Show everything this many times as large as it fits; the rest can be scrolled."""
        self._larger = scale
        self._use_scale()

    def retranslate(self) -> None:
        """Use the words of the current language."""
        self.setWindowTitle(self.tr("Presentation"))
        self.waterfall_title.setText(self.tr("From the end of your speech to the first sound"))
        self.explain_button.setText(self.tr("Explain (E)"))
        set_tip(self.explain_button, self.tr("Explain each stage in one sentence"))
        self.leave_button.setText(self.tr("Leave (Esc)"))
        set_tip(self.leave_button, self.tr("Back to the ordinary window (Esc, F11)"))
        self.question.setAccessibleName(self.tr("Question"))
        self.reply.setAccessibleName(self.tr("Reply"))
        for plot in self.plots.values():
            plot.retranslate()
        self.waterfall.retranslate()
        self.stages.retranslate()
        self._show_exchange()
        self._write_sum(self._shown_metrics.waterfall_so_far())

    def showEvent(self, event: QShowEvent) -> None:
        """Draw while visible."""
        self.redraw()
        self._timer.start()
        super().showEvent(event)

    def hideEvent(self, event: QHideEvent) -> None:
        """Stop drawing."""
        self._timer.stop()
        super().hideEvent(event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Texts grow with the window."""
        super().resizeEvent(event)
        self._use_scale()

    def closeEvent(self, event: QCloseEvent) -> None:
        """Back to the ordinary window."""
        super().closeEvent(event)
        self.left.emit()

    def _explain(self, on: bool) -> None:
        self._lower.setCurrentIndex(int(on))

    def _make_room(self) -> None:
        """An error takes the place of the captions, so that the plots stay in sight."""
        self.reply.setHidden(bool(self.banner.message))

    def _show_exchange(self) -> None:
        self.question.setText(self._exchange.question or self.tr("Ask something."))
        self.reply.setText(self._exchange.reply[-_LONGEST_CAPTION:])

    def _write_sum(self, waterfall: Waterfall | None) -> None:
        self.waterfall_legend.setText("\n".join(self.waterfall.legend))
        if waterfall is None:
            self.waterfall_sum.setText("")
            return
        words = self.tr("%1 ms") if waterfall.is_complete else self.tr("%1 ms so far")
        self.waterfall_sum.setText(words.replace("%1", number(waterfall.end_ms, "ms")))

    def _use_scale(self) -> None:
        """Scale everything to the window."""
        fit = min(self.width() / _USUAL.width(), self.height() / _USUAL.height())
        scaled = replace(self._theme, scale=_SCALE * fit * self._larger)
        if scaled == self._scaled:
            return
        self._scaled, px = scaled, scaled.px
        self.setStyleSheet(
            f"QWidget {{ font-size: {px(13)}px; }}"
            + themes.style_sheet(scaled)
            + f"""
QLabel[role="title"] {{ font-size: {px(15)}px; }}
QLabel[role="figure"] {{ font-size: {px(26)}px; }}
QLabel[role="unit"] {{ font-size: {px(16)}px; color: {scaled.text}; }}
QLabel[role="question"] {{ font-size: {px(15)}px; color: {scaled.muted}; }}
QLabel[role="caption"] {{ font-size: {px(19)}px; font-weight: 600; }}
"""
        )
        for part in (self.badge, self.banner, self.waterfall):
            part.set_theme(scaled)
        for plot in self.plots.values():
            plot.set_theme(scaled)
        self.stages.show_stages(self.waterfall.stages, scaled)
        self.reply.setFixedHeight(_CAPTION_LINES * px(24))
        for plot in self.plots.values():
            plot.plot.setMinimumHeight(px(_LEAST_PLOT))
        for layout in self._layouts:
            layout.setContentsMargins(px(8), px(4), px(8), px(4))
            layout.setSpacing(px(4))
        self._head.setSpacing(px(8))
        self._title.setSpacing(px(14))

    def _lay_out(self) -> None:
        self.resize(_USUAL)
        for label, role in (
            (self.model, "muted"),
            (self.question, "question"),
            (self.reply, "caption"),
            (self.waterfall_title, "title"),
            (self.waterfall_legend, "muted"),
            (self.waterfall_sum, "figure"),
        ):
            label.setProperty("role", role)
        self.reply.setWordWrap(True)
        self.reply.setAlignment(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft)
        head = self._head = QHBoxLayout()
        head.addWidget(self.badge)
        head.addWidget(self.question, 1)
        head.addWidget(self.model)
        head.addWidget(self.explain_button)
        head.addWidget(self.leave_button)
        card = QFrame()
        card.setProperty("role", "card")
        title = self._title = QHBoxLayout()
        title.addWidget(self.waterfall_title)
        title.addWidget(self.waterfall_legend, 1)
        title.addWidget(self.waterfall_sum)
        self.waterfall_legend.setWordWrap(True)
        self.waterfall_legend.setAlignment(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight)
        inside = QVBoxLayout(card)
        inside.addLayout(title)
        inside.addWidget(self.waterfall)
        plots = QWidget()
        row = QHBoxLayout(plots)
        for plot in self.plots.values():
            row.addWidget(plot, 1)
        self._lower.addWidget(plots)
        self._lower.addWidget(self.stages)
        body = QWidget()
        root = QVBoxLayout(body)
        root.addLayout(head)
        for part in (self.reply, self.banner, self.notice, card):
            root.addWidget(part)
        root.addWidget(self._lower, 1)
        self._layouts = (root, inside)
        row.setContentsMargins(0, 0, 0, 0)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        # Texts shrink with the window: what they need at its present size is no limit of the next one.
        outer.setSizeConstraint(QVBoxLayout.SizeConstraint.SetNoConstraint)
        self.setMinimumSize(_SMALLEST)
        outer.addWidget(FittingArea(body))
