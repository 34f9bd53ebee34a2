"""A numeric tile: the last value of a metric with its p50 and p95; its definition is the tooltip."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QHBoxLayout, QVBoxLayout, QWidget

from app.gui.common.plain_text import ElidedLabel, PlainLabel, set_markup_tip
from app.gui.common.themes import Ink, Theme
from app.gui.latency.definitions import define, number, percentiles, tooltip
from app.gui.latency.metrics import LatencyMetrics, Metric


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
        self._edge.setFixedWidth(3)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(7, 8, 0, 8)
        layout.setSpacing(7)
        layout.addWidget(self._edge)
        layout.addLayout(figures, 1)
        self._below.setMinimumWidth(1)
        self._name.setContentsMargins(0, 0, 6, 0)
        self.setMinimumWidth(112)
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
        """Take the colours of a theme."""
        self._edge.setStyleSheet(f"background: {theme.ink(self._ink)}; border: none; border-radius: 1px;")
