"""The waterfall of the last turn: from the end of the question to the first sound of the answer."""

from __future__ import annotations

import math

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QHelpEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QToolTip, QWidget

from app.gui.common.themes import Theme, mix
from app.gui.common.turn_times import LOCAL_STAGES, LatencyStage, Waterfall
from app.gui.latency.definitions import (
    number,
    rating_definition,
    rating_name,
    rating_text,
    speculation_text,
    stage_name,
    stage_text,
)
from app.gui.latency.plots import round_up

_ROW = 21
_AXIS = 20
_TICKS = 6
_MARK = 4.0
"""Half the size of a mark on a bar."""


def axis_marks(upper_ms: float) -> list[tuple[float, str]]:
    """The marks of an axis from 0 to `upper_ms` with labels of as many decimals as the step has."""
    step = round_up(upper_ms / _TICKS)
    decimals = next(count for count in range(4) if math.isclose(step, round(step, count)))
    values = [index * step for index in range(math.floor(upper_ms / step) + 1)]
    return [(value, f"{value:.{decimals}f}" if value else "0 ms") for value in values]


class WaterfallView(QWidget):
    """Draws a `Waterfall`: one row per stage, its spans on a common axis of ms, their sum at the right.

    Diamonds on the bar of the endpointing are the answers of the end-of-turn detector. Lighter bars are work
    on a reply before the end of the turn was confirmed.
    """

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._waterfall: Waterfall | None = None
        self._fit()

    def sizeHint(self) -> QSize:
        """Height of all rows."""
        return QSize(480, self.minimumHeight())

    def show_waterfall(self, waterfall: Waterfall | None) -> None:
        """Draw this turn; None empties the view."""
        if waterfall == self._waterfall:
            return
        self._waterfall = waterfall
        self._fit()
        self._describe()
        self.update()

    def set_theme(self, theme: Theme) -> None:
        """Take the colours of a theme."""
        self._theme = theme
        self.update()

    def retranslate(self) -> None:
        """Use the words of the current language."""
        self._describe()
        self.update()

    def event(self, event: QEvent) -> bool:
        """Show the definition of the stage under the pointer."""
        if event.type() is QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            row = int((event.pos().y() - _AXIS) // _ROW)
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
        """Draw axis, rows, spans and sums."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        small = QFont(self.font())
        small.setPointSizeF(9.0)
        painter.setFont(small)
        metrics = QFontMetricsF(small)
        names = max(metrics.horizontalAdvance(stage_name(stage)) for stage in self.stages) + 26
        sums = metrics.horizontalAdvance("0 000 ms ") + 8
        track = QRectF(names, _AXIS, max(40.0, self.width() - names - sums), _ROW * len(self.stages))
        end = self._waterfall.end_ms if self._waterfall is not None else 0.0
        upper = max(end, 1.0) * 1.02 if self._waterfall is not None else 1000.0
        self._draw_axis(painter, track, upper)
        for row, stage in enumerate(self.stages):
            self._draw_row(painter, track, row, stage, upper)
        if self._waterfall is not None:
            x = track.left() + track.width() * end / upper
            painter.setPen(QPen(QColor(self._theme.text), 1))
            painter.drawLine(QPointF(x, track.top() - 3), QPointF(x, track.bottom()))
        painter.end()

    def _draw_axis(self, painter: QPainter, track: QRectF, upper: float) -> None:
        for index, (value, label) in enumerate(axis_marks(upper)):
            x = track.left() + track.width() * value / upper
            painter.setPen(QPen(QColor(self._theme.grid), 1))
            painter.drawLine(QPointF(x, track.top() - 2), QPointF(x, track.bottom()))
            painter.setPen(QColor(self._theme.muted))
            box = QRectF(x - 40, 0, 80, _AXIS - 4) if index else QRectF(x - 2, 0, 80, _AXIS - 4)
            side = Qt.AlignmentFlag.AlignHCenter if index else Qt.AlignmentFlag.AlignLeft
            painter.drawText(box, side | Qt.AlignmentFlag.AlignVCenter, label)

    def _draw_row(
        self, painter: QPainter, track: QRectF, row: int, stage: LatencyStage, upper: float
    ) -> None:
        colour = QColor(self._theme.stages[stage])
        top = track.top() + row * _ROW
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(colour)
        painter.drawRoundedRect(QRectF(2, top + 6, 9, 9), 3, 3)
        centre = Qt.AlignmentFlag.AlignVCenter
        painter.setPen(QColor(self._theme.text))
        painter.drawText(QRectF(18, top, track.left() - 20, _ROW), centre, stage_name(stage))
        lane = QColor(self._theme.sunken)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(lane)
        painter.drawRoundedRect(QRectF(track.left(), top + 8.5, track.width(), 4), 2, 2)
        total = 0.0
        if self._waterfall is not None:
            for bar in self._waterfall.bars:
                if bar.stage is stage:
                    painter.setBrush(
                        QColor(mix(colour.name(), self._theme.surface, 0.5 * bar.is_speculative))
                    )
                    left = track.left() + track.width() * bar.start_ms / upper
                    width = max(2.0, track.width() * bar.duration_ms / upper)
                    painter.drawRoundedRect(QRectF(left, top + 4, width, _ROW - 8), 3, 3)
            total = self._waterfall.total_ms(stage)
            if stage is LatencyStage.ENDPOINTING:
                self._draw_ratings(painter, track, top + _ROW / 2, upper)
        right = Qt.AlignmentFlag.AlignRight | centre
        painter.setPen(QColor(self._theme.text if total else self._theme.muted))
        text = f"{number(total, 'ms')} ms" if total else "–"
        painter.drawText(QRectF(track.right(), top, self.width() - track.right() - 2, _ROW), right, text)

    def _draw_ratings(self, painter: QPainter, track: QRectF, middle: float, upper: float) -> None:
        right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        left = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
        painter.setBrush(QColor(self._theme.text))
        painter.setPen(QPen(QColor(self._theme.sunken), 1))
        for rating in self._waterfall.ratings if self._waterfall is not None else ():
            x = track.left() + track.width() * min(rating.answered_ms, upper) / upper
            corners = ((x - _MARK, middle), (x, middle - _MARK), (x + _MARK, middle), (x, middle + _MARK))
            painter.drawPolygon([QPointF(*corner) for corner in corners])
            # The detector's number to the left, that of the language model to the right: both come soon after
            # the pause.
            box = QRectF(x - _ROW * 4, middle - _ROW / 2, _ROW * 4 - _MARK - 2, _ROW)
            is_detector = rating.by == "detector"
            if not is_detector:
                box.moveLeft(x + _MARK + 2)
            painter.drawText(box, right if is_detector else left, f"{rating.probability:.2f}")

    def _fit(self) -> None:
        """Number of rows: a server's reply may have more than others, none has fewer, so that the layout
        moves little."""
        self.setMinimumHeight(_AXIS + _ROW * max(len(LOCAL_STAGES), len(self.stages)) + 4)

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
