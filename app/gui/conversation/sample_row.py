"""A row of sample questions. A click feeds the WAV through the capture path, as if it were spoken."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from PySide6.QtCore import QEvent, QLocale, QObject, Qt, Signal
from PySide6.QtGui import QResizeEvent, QWheelEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPushButton, QScrollArea, QToolButton, QWidget

from app.gui.common.icons import Icons
from app.gui.common.plain_text import PlainLabel, set_tip
from app.gui.common.themes import Theme
from app.gui.common.translation import FollowsLanguage
from app.sample_questions import SampleQuestion


class SampleRow(FollowsLanguage, QWidget):
    """Buttons side by side, moved sideways by arrows, wheel and focus. Hidden without samples.

    Signals:
        chosen: a sample was pressed; the `SampleQuestion`.
    """

    chosen = Signal(object)

    def __init__(
        self, samples: list[SampleQuestion], theme: Theme, icons: Icons, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self._samples, self._icons = samples, icons
        self.language = QLocale().name()
        self.running: Path | None = None
        """The running sample."""
        self._lead = PlainLabel()
        self._lead.setProperty("role", "small")
        self.buttons = [QPushButton() for _ in samples]
        self.left_button, self.right_button = QToolButton(), QToolButton()
        self._area, self._body = QScrollArea(), QWidget()
        self._lay_out()
        if not samples:  # never shown here: without a parent that would be a window of its own
            self.hide()
        self.set_theme(theme)
        self.retranslate()

    def set_ready(self, is_ready: bool) -> None:
        """Whether samples can be played now."""
        for button in self.buttons:
            button.setEnabled(is_ready)

    def show_running(self, path: Path | None) -> None:
        """Mark the running sample; None if there is none."""
        self.running = path
        for sample, button in zip(self._samples, self.buttons, strict=True):
            is_running = sample.path == path
            if bool(button.property("active")) != is_running:
                button.setProperty("active", is_running)
                button.style().unpolish(button)
                button.style().polish(button)

    def label(self, path: Path) -> str:
        """The label of the sample with this file; the name of the file if it is not a sample."""
        labels = (sample.label(self.language) for sample in self._samples if sample.path == path)
        return next(labels, path.stem)

    def set_theme(self, theme: Theme) -> None:
        """Take the colours of a theme."""
        for button in (*self.buttons, self.left_button, self.right_button):
            button.setIconSize(theme.square(14))
        for button in self.buttons:
            button.setIcon(self._icons.icon("wave", theme.accent, theme.muted))
        self.left_button.setIcon(self._icons.icon("chevron-left", theme.text, theme.border))
        self.right_button.setIcon(self._icons.icon("chevron-right", theme.text, theme.border))
        self._area.setFixedHeight(self._body.sizeHint().height())

    def set_language(self, language: str) -> None:
        """Label the samples in this language (`zh...` or another)."""
        self.language = language
        self.retranslate()

    def retranslate(self) -> None:
        """Use the words of the current language."""
        self._lead.setText(self.tr("Try"))
        for sample, button in zip(self._samples, self.buttons, strict=True):
            label = sample.label(self.language)
            if sample.is_declined:
                label = self.tr("%1 (nano declines)").replace("%1", label)
            button.setText(label)
            hint = self.tr("Send this recording through the microphone path: %1")
            set_tip(button, hint.replace("%1", label))
            button.setAccessibleName(self.tr("Sample question: %1").replace("%1", label))
        for arrow, name in (
            (self.left_button, self.tr("Earlier samples")),
            (self.right_button, self.tr("More samples")),
        ):
            set_tip(arrow, name)
            arrow.setAccessibleName(name)
        self._area.setFixedHeight(self._body.sizeHint().height())
        self._show_arrows()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Show the arrows if the row is too narrow."""
        super().resizeEvent(event)
        self._show_arrows()

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Scroll the row sideways with the wheel."""
        turn = event.angleDelta()
        self._move(-(turn.y() or turn.x()))
        event.accept()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Bring a button that takes the focus into sight."""
        if event.type() is QEvent.Type.FocusIn and isinstance(watched, QPushButton):
            self._area.ensureWidgetVisible(watched, 24, 0)
        return False

    def _move(self, pixels: int) -> None:
        bar = self._area.horizontalScrollBar()
        bar.setValue(bar.value() + pixels)

    def _move_page(self, direction: int) -> None:
        self._move(direction * int(self._area.viewport().width() * 0.8))

    def _show_arrows(self) -> None:
        bar = self._area.horizontalScrollBar()
        is_short = self._body.sizeHint().width() > self.width() - self._lead.sizeHint().width() - 8
        for button, has_more in (
            (self.left_button, bar.value() > bar.minimum()),
            (self.right_button, bar.value() < bar.maximum()),
        ):
            button.setVisible(is_short)
            button.setEnabled(has_more)

    def _lay_out(self) -> None:
        chips = QHBoxLayout(self._body)
        chips.setContentsMargins(2, 2, 2, 2)
        chips.setSpacing(6)
        for sample, button in zip(self._samples, self.buttons, strict=True):
            button.setProperty("role", "chip")
            button.clicked.connect(partial(self.chosen.emit, sample))
            button.installEventFilter(self)
            chips.addWidget(button)
        chips.addStretch(1)
        self._body.setProperty("role", "plain")
        self._area.setProperty("role", "plain")
        self._area.setFrameShape(QFrame.Shape.NoFrame)
        self._area.setWidgetResizable(True)
        self._area.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._area.setWidget(self._body)
        self._area.horizontalScrollBar().valueChanged.connect(self._show_arrows)
        self._area.horizontalScrollBar().rangeChanged.connect(self._show_arrows)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(4)
        row.addWidget(self._lead)
        row.addWidget(self._area, 1)
        for arrow, direction in ((self.left_button, -1), (self.right_button, 1)):
            arrow.setFocusPolicy(Qt.FocusPolicy.NoFocus)
            arrow.clicked.connect(partial(self._move_page, direction))
            row.addWidget(arrow)
