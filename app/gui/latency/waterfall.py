"""The waterfall of the last turn: from the end of the question to the first sound of the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QHelpEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QToolTip, QWidget

from app.gui.common.themes import Theme, mix
from app.gui.common.turn_times import LOCAL_STAGES, LatencyStage, Waterfall
from app.gui.latency.definitions import (
    number,
    rating_definition,
    rating_legend,
    rating_name,
    rating_text,
    speculation_text,
    stage_name,
    stage_text,
    time_axis_name,
)
from app.gui.latency.plots import round_up

_ROW = 20
_AXIS = 20
_TICKS = 6
_MARK = 4.0
"""Half the size of a mark on a bar."""
_GAP = 6.0
"""Least distance of two labels."""


def axis_marks(upper_ms: float, most: int = _TICKS) -> list[tuple[float, str]]:
    """The marks of an axis from 0 to `upper_ms`, about `most` of them, with labels of as many decimals as the
    step has."""
    step = round_up(upper_ms / most)
    decimals = next(count for count in range(4) if math.isclose(step, round(step, count)))
    values = [index * step for index in range(math.floor(upper_ms / step) + 1)]
    return [(value, f"{value:.{decimals}f}" if value else "0") for value in values]


def place_labels(
    marks: Sequence[tuple[float, float, bool]], low: float, high: float, half: float, gap: float
) -> list[float | None]:
    """The left edge of a label beside each mark, None for one that has no room.

    A mark is its place, the width of its label, and whether the label stands at its left. No label covers
    another one or a mark (`half` of whose width is given), or leaves the range from `low` to `high`. A label
    takes the other side where its own is taken.
    """
    taken = [(place - half, place + half) for place, _, _ in marks]
    edges: list[float | None] = []
    for place, width, is_left in marks:
        sides = [place - half - gap - width, place + half + gap]
        for left in sides if is_left else reversed(sides):
            right = left + width
            is_free = all(right + gap <= begin or end + gap <= left for begin, end in taken)
            if low <= left and right <= high and is_free:
                taken.append((left, right))
                edges.append(left)
                break
        else:
            edges.append(None)
    return edges


class WaterfallView(QWidget):
    """Draws a `Waterfall`: one row per stage, its spans on a common axis of ms, their sum at the right, and a
    legend below.

    Diamonds on the bar of the endpointing are the answers of the end-of-turn detector. Lighter bars are work
    on a reply before the end of the turn was confirmed.
    """

    def __init__(self, theme: Theme, parent: QWidget | None = None, *, has_legend: bool = True) -> None:
        super().__init__(parent)
        self._theme = theme
        self._has_legend = has_legend
        self._waterfall: Waterfall | None = None
        self._least_ms = 0.0
        self._fit()

    def sizeHint(self) -> QSize:
        """Height of all rows."""
        return QSize(480, self.minimumHeight())

    def show_waterfall(self, waterfall: Waterfall | None) -> None:
        """Draw this turn; None empties the view. The axis of a turn that is not complete is as long as that
        of the turn before, so that its bars grow and do not shrink."""
        if waterfall == self._waterfall:
            return
        before, self._waterfall = self._waterfall, waterfall
        if waterfall is None or waterfall.reaches_device:
            self._least_ms = 0.0
        elif before is None or before.turn_id != waterfall.turn_id:
            self._least_ms = 0.0 if before is None or waterfall.is_complete else before.end_ms
        self._fit()
        self._describe()
        self.update()

    def set_theme(self, theme: Theme) -> None:
        """Take the colours and the scale of a theme."""
        self._theme = theme
        self._fit()
        self.update()

    def retranslate(self) -> None:
        """Use the words of the current language."""
        self._describe()
        self.update()

    def event(self, event: QEvent) -> bool:
        """Show the definition of the stage under the pointer."""
        if event.type() is QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            row = (event.pos().y() - self._axis) // self._row
            stages = self.stages
            if 0 <= row < len(stages):
                QToolTip.showText(event.globalPos(), self.row_text(stages[row]), self)
                return True
        return super().event(event)

    @property
    def stages(self) -> tuple[LatencyStage, ...]:
        """The stages that have a row: those of the server for a server's reply, else those of an engine of
        this process."""
        return LOCAL_STAGES if self._waterfall is None else self._waterfall.stages

    @property
    def legend(self) -> tuple[str, ...]:
        """What the marks mean that this turn has: first the diamonds, then the lighter bars."""
        if self._waterfall is None:
            return ()
        marks = (f"◆ {rating_legend()}",) if self._waterfall.ratings else ()
        return (*marks, speculation_text()) if self._waterfall.is_speculative else marks

    def row_text(self, stage: LatencyStage) -> str:
        """The definition of a stage and of the marks on it, as rich text."""
        parts = [f"<b>{stage_name(stage)}</b><br>{stage_text(stage)}"]
        if stage is LatencyStage.ENDPOINTING:
            ratings = self._waterfall.ratings if self._waterfall is not None else ()
            answers = "".join(f"<br>{rating_text(rating)}" for rating in ratings)
            parts.append(f"<b>◆ {rating_name()}</b><br>{rating_definition()}{answers}")
        elif self._waterfall is not None and self._waterfall.is_speculative:
            parts.append(speculation_text())
        return f"<qt>{'<br>'.join(parts)}</qt>"

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw axis, rows, spans, sums and legend."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        small = QFont(self.font())
        small.setPointSizeF(9.0 * self._theme.scale)
        painter.setFont(small)
        px, metrics = self._theme.px, QFontMetricsF(small)
        names = max(metrics.horizontalAdvance(stage_name(stage)) for stage in self.stages) + px(26)
        sums = metrics.horizontalAdvance("0 000 ms ") + px(8)
        width = max(float(px(40)), self.width() - names - sums)
        track = QRectF(names, self._axis, width, self._row * len(self.stages))
        end = self._waterfall.end_ms if self._waterfall is not None else 0.0
        upper = max(end, self._least_ms, 1.0) * 1.02 if self._waterfall is not None else 1000.0
        self._draw_axis(painter, track, upper)
        for row, stage in enumerate(self.stages):
            self._draw_row(painter, track, row, stage, upper)
        if self._waterfall is not None:
            x = track.left() + track.width() * end / upper
            painter.setPen(QPen(QColor(self._theme.text), px(1)))
            painter.drawLine(QPointF(x, track.top() - px(3)), QPointF(x, track.bottom()))
        if self._has_legend:
            painter.setPen(QColor(self._theme.muted))
            box = QRectF(px(2), track.bottom() + px(2), self.width() - px(4), self._row)
            painter.drawText(box, Qt.AlignmentFlag.AlignVCenter, "    ".join(self.legend))
        painter.end()

    @property
    def _row(self) -> int:
        return self._theme.px(_ROW)

    @property
    def _axis(self) -> int:
        return self._theme.px(_AXIS)

    def _draw_axis(self, painter: QPainter, track: QRectF, upper: float) -> None:
        px, height = self._theme.px, float(self._axis - self._theme.px(4))
        widest = painter.fontMetrics().horizontalAdvance("0000 ms")
        most = max(1, min(_TICKS, int(track.width() / (1.5 * widest))))
        centre = Qt.AlignmentFlag.AlignVCenter
        painter.setPen(QColor(self._theme.muted))
        title = QRectF(0, 0, track.left() - px(14), height)
        painter.drawText(title, Qt.AlignmentFlag.AlignRight | centre, time_axis_name())
        for value, label in axis_marks(upper, most):
            x = track.left() + track.width() * value / upper
            painter.setPen(QPen(QColor(self._theme.grid), px(1)))
            painter.drawLine(QPointF(x, track.top() - px(2)), QPointF(x, track.bottom()))
            painter.setPen(QColor(self._theme.muted))
            box = QRectF(x - px(40), 0, px(80), height)
            painter.drawText(box, Qt.AlignmentFlag.AlignHCenter | centre, label)

    def _draw_row(
        self, painter: QPainter, track: QRectF, row: int, stage: LatencyStage, upper: float
    ) -> None:
        px, height = self._theme.px, self._row
        colour = QColor(self._theme.stages[stage])
        top = track.top() + row * height
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(colour)
        painter.drawRoundedRect(QRectF(px(2), top + (height - px(9)) / 2, px(9), px(9)), px(3), px(3))
        centre = Qt.AlignmentFlag.AlignVCenter
        painter.setPen(QColor(self._theme.text))
        painter.drawText(QRectF(px(18), top, track.left() - px(20), height), centre, stage_name(stage))
        lane = QRectF(track.left(), top + (height - px(4)) / 2, track.width(), px(4))
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(self._theme.sunken))
        painter.drawRoundedRect(lane, px(2), px(2))
        total = 0.0
        if self._waterfall is not None:
            for bar in self._waterfall.bars:
                if bar.stage is stage:
                    painter.setBrush(
                        QColor(mix(colour.name(), self._theme.surface, 0.5 * bar.is_speculative))
                    )
                    left = track.left() + track.width() * bar.start_ms / upper
                    width = max(2.0 * self._theme.scale, track.width() * bar.duration_ms / upper)
                    painter.drawRoundedRect(QRectF(left, top + px(4), width, height - px(8)), px(3), px(3))
            total = self._waterfall.total_ms(stage)
            if stage is LatencyStage.ENDPOINTING:
                self._draw_ratings(painter, track, top + height / 2, upper)
        right = Qt.AlignmentFlag.AlignRight | centre
        painter.setPen(QColor(self._theme.text if total else self._theme.muted))
        text = f"{number(total, 'ms')} ms" if total else "–"
        painter.drawText(
            QRectF(track.right(), top, self.width() - track.right() - px(2), height), right, text
        )

    def _draw_ratings(self, painter: QPainter, track: QRectF, middle: float, upper: float) -> None:
        ratings = self._waterfall.ratings if self._waterfall is not None else ()
        places = [track.left() + track.width() * min(each.answered_ms, upper) / upper for each in ratings]
        texts = [f"{each.probability:.2f}" for each in ratings]
        half = _MARK * self._theme.scale
        metrics = QFontMetricsF(painter.font())
        edges = place_labels(
            # The detector's number to the left, that of the language model to the right: both come soon after
            # the pause.
            [
                (place, metrics.horizontalAdvance(text), rating.by == "detector")
                for place, text, rating in zip(places, texts, ratings, strict=True)
            ],
            track.left(),
            track.right(),
            half,
            _GAP * self._theme.scale,
        )
        painter.setBrush(QColor(self._theme.text))
        for x, edge, text in zip(places, edges, texts, strict=True):
            painter.setPen(QPen(QColor(self._theme.sunken), self._theme.px(1)))
            corners = ((x - half, middle), (x, middle - half), (x + half, middle), (x, middle + half))
            painter.drawPolygon([QPointF(*corner) for corner in corners])
            if edge is not None:
                self._write_on_bar(painter, QRectF(edge, middle - self._row / 2, 0, self._row), text)

    def _write_on_bar(self, painter: QPainter, box: QRectF, text: str) -> None:
        """A text on a plate of its own: it is legible on the bar and beside it."""
        box.setWidth(QFontMetricsF(painter.font()).horizontalAdvance(text))
        inset, reach = self._theme.px(4), self._theme.px(3)
        plate = box.adjusted(-reach, inset, reach, -inset)
        brush = painter.brush()
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(self._theme.surface))
        painter.drawRoundedRect(plate, reach, reach)
        painter.setBrush(brush)
        painter.setPen(QColor(self._theme.text))
        painter.drawText(box, Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextDontClip, text)

    def _fit(self) -> None:
        """Number of rows: a server's reply may have more than others, none has fewer, so that the layout
        moves little. One more row is for the legend."""
        rows = max(len(LOCAL_STAGES), len(self.stages)) + int(self._has_legend)
        self.setMinimumHeight(self._axis + self._row * rows)

    def _describe(self) -> None:
        self.setAccessibleName(self.tr("Waterfall of the last turn"))
        if self._waterfall is None:
            self.setAccessibleDescription("")
            return
        parts = [
            f"{stage_name(stage)} {number(self._waterfall.total_ms(stage), 'ms')} ms" for stage in self.stages
        ]
        parts += [f"{rating_name()}: {rating_text(rating)}" for rating in self._waterfall.ratings]
        parts += [speculation_text()] if self._waterfall.is_speculative else []
        self.setAccessibleDescription(", ".join(parts))
