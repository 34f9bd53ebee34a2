"""Chat bubbles: a question, spoken, typed or a sample; a reply with its latencies, and what was heard of it.

In: texts, levels, times and how a turn ended. Out: a frame as wide as its text; `menu_wanted`, `play_again`.
GUI thread.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QPoint, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QContextMenuEvent, QFontMetricsF, QPainter, QPaintEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPushButton, QToolButton, QVBoxLayout, QWidget

from app.gui.common.icons import Icons
from app.gui.common.plain_text import PlainLabel, set_tip
from app.gui.common.themes import Theme
from app.gui.common.translation import FollowsLanguage
from app.gui.common.turn_times import TurnTimes
from app.session.events import CancelReason, TurnSource
from engine_runtime.types import FinishReason, Modality

_BAR_PX, _GAP_PX = 3.0, 2.0
_MOST_LEVELS = 1200
_QUIET_DBFS, _LOUD_DBFS = -46.0, -10.0
_MARGIN_PX, _BORDER_PX = 14, 1
_NARROWEST_PX = 190
_LONGEST_TEXT = 20_000
"""Characters of a question or a reply."""
_CLOSING_MARKS = ",.;:!?…)]}”’»，。、；：！？）】》」』"


def bars(levels: list[float], count: int) -> NDArray[np.float64]:
    """Levels (dBFS) as `count` heights from 0 to 1: the loudest level of each share of the time."""
    heights: NDArray[np.float64] = np.zeros(count)
    if levels:
        values = np.clip((np.array(levels) - _QUIET_DBFS) / (_LOUD_DBFS - _QUIET_DBFS), 0.0, 1.0)
        edges = np.linspace(0, len(values), count + 1)
        for index in range(count):
            low = min(int(edges[index]), len(values) - 1)
            heights[index] = values[low : max(low + 1, int(edges[index + 1]))].max()
    return heights


class WaveStrip(QWidget):
    """Rounded bars in one colour. Levels may be added during the turn."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._levels: list[float] = []
        self.set_theme(theme)

    def sizeHint(self) -> QSize:
        """Wide enough for some thirty bars."""
        return QSize(self._theme.px(160), self.height())

    @property
    def levels(self) -> tuple[float, ...]:
        """The levels on show, in dBFS."""
        return tuple(self._levels)

    def add_level(self, dbfs: float) -> None:
        """Add the level of the next moment."""
        self._levels.append(dbfs)
        if len(self._levels) > _MOST_LEVELS:
            self._levels = [max(pair) for pair in zip(self._levels[::2], self._levels[1::2], strict=False)]
        self.update()

    def trim(self) -> None:
        """Leave out the silence at the end."""
        while self._levels and self._levels[-1] <= _QUIET_DBFS:
            self._levels.pop()
        self.update()

    def clear(self) -> None:
        """Start over."""
        self._levels.clear()
        self.update()

    def set_theme(self, theme: Theme) -> None:
        """Draw in the accent colour of a theme, at its scale."""
        self._theme = theme
        self.setFixedHeight(theme.px(26))
        self.setMinimumWidth(theme.px(90))
        self.update()

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw the bars."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(self._theme.accent))
        bar, step = _BAR_PX * self._theme.scale, (_BAR_PX + _GAP_PX) * self._theme.scale
        count = max(1, int(self.width() // step))
        middle = self.height() / 2
        for index, height in enumerate(bars(self._levels, count)):
            tall = max(bar, height * (self.height() - 2))
            painter.drawRoundedRect(QRectF(index * step, middle - tall / 2, bar, tall), bar / 2, bar / 2)
        painter.end()


class Bubble(FollowsLanguage, QFrame):
    """A rounded frame with a caption, text and a picture of the loudness. As wide as its text.

    Signals:
        menu_wanted: the menu of the turn was requested, at this place on the screen.
    """

    menu_wanted = Signal(QPoint)

    def __init__(self, role: str, theme: Theme, icons: Icons, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("role", role)
        self.look_theme, self.look_icons = theme, icons
        self._widest = 400
        self.icon, self.caption, self.body = PlainLabel(), PlainLabel(), PlainLabel()
        self.strip = WaveStrip(theme)
        self.strip.hide()
        self.caption.setProperty("role", "small")
        self.texts = [self.body]
        """Labels with text of any length, one below the other."""
        set_up_text(self.body)
        self.head = QHBoxLayout()
        self.head.setSpacing(6)
        self.head.addWidget(self.icon)
        self.head.addWidget(self.caption, 1)
        self.column = QVBoxLayout(self)
        self.column.setContentsMargins(_MARGIN_PX, 9, _MARGIN_PX, 10)
        self.column.setSpacing(5)
        self.column.addLayout(self.head)
        self.column.addWidget(self.strip)
        self.column.addWidget(self.body)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        """Ask for the menu."""
        self.menu_wanted.emit(event.globalPos())

    def set_widest(self, width: int) -> None:
        """Never be wider than this."""
        self._widest = max(self.look_theme.px(_NARROWEST_PX), width)
        self.fit_width()

    def set_body(self, text: str) -> None:
        """Show this text."""
        self.body.setText(text)
        self.body.setVisible(bool(text))
        self.fit_width()

    def fit_width(self) -> None:
        """Take the width of the text, the caption or the picture, whichever needs most."""
        metrics = QFontMetricsF(self.body.font())
        shown = [label.text() for label in self.texts if label.isVisibleTo(self)]
        lines = [line for text in shown for line in text.split("\n")[:400]]
        # Only the widest line matters, and no line needs to be measured beyond the limit.
        widest = max((metrics.horizontalAdvance(line[: self._widest]) for line in lines), default=0.0)
        self.head.invalidate()  # a layout inside another keeps its old width until the event loop runs
        wanted = max(int(widest) + 4, self.head.sizeHint().width(), self.tail_width())
        least = self.look_theme.px(_NARROWEST_PX)
        rim = _MARGIN_PX + self.look_theme.px(_BORDER_PX)
        self.setFixedWidth(min(max(wanted + 2 * rim, least), self._widest))

    def tail_width(self) -> int:
        """Width required by the widgets below the text."""
        return self.strip.sizeHint().width() if self.strip.isVisibleTo(self) else 0

    def add_level(self, dbfs: float) -> None:
        """Add the loudness of the next moment."""
        self.strip.add_level(dbfs)
        if not self.strip.isVisibleTo(self):
            self.strip.show()
            self.fit_width()

    def show_icon(self, name: str, colour: str) -> None:
        """Show an icon before the caption."""
        self.icon.setPixmap(
            self.look_icons.pixmap(name, colour, self.look_theme.px(16), self.devicePixelRatioF())
        )

    def set_theme(self, theme: Theme) -> None:
        """Take the colours and the scale of a theme."""
        self.look_theme = theme
        self.strip.set_theme(theme)
        self.retranslate()
        self.fit_width()

    def retranslate(self) -> None:
        """Use the words of the current language."""


def set_up_text(label: PlainLabel) -> None:
    """A label for selectable text; hidden while it is empty."""
    label.most = _LONGEST_TEXT
    label.setWordWrap(True)
    label.setTextInteractionFlags(
        Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
    )
    label.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
    label.hide()


class UserBubble(Bubble):
    """A spoken question (with its length, later in words) or a typed one. `label` is the text of a sample
    question."""

    def __init__(
        self,
        source: TurnSource,
        text: str,
        label: str,
        theme: Theme,
        icons: Icons,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__("user", theme, icons, parent)
        self.source = source
        self.said = text
        """What was typed or, once that is known, said; "" before."""
        self.label = label
        self.seconds: float | None = None
        self._progress: tuple[float, float] | None = None
        self._cancelled: CancelReason | None = None
        self.set_body(text or label)
        self.retranslate()

    @property
    def is_committed(self) -> bool:
        """Whether the turn is over."""
        return self.seconds is not None

    def show_committed(self, seconds: float) -> None:
        """The turn is over."""
        self.seconds = seconds
        self.strip.trim()
        self.retranslate()

    def show_caption(self, text: str) -> None:
        """The turn in words; a sample question has its own."""
        if not self.label:
            self.said = text
            self.set_body(text)
            self.retranslate()

    def show_reopened(self) -> None:
        """The user continues the turn."""
        self.show_caption("")
        self.seconds = None
        self.retranslate()

    def show_progress(self, heard_s: float, length_s: float) -> None:
        """Show how much of a sample was heard."""
        if self.seconds is None and length_s > 0:
            self._progress = (min(heard_s, length_s), length_s)
            self.retranslate()

    def show_cancelled(self, reason: CancelReason) -> None:
        """The turn was dropped."""
        self._cancelled = reason
        self.retranslate()

    def retranslate(self) -> None:
        """Use the words of the current language."""
        icon, name = {
            "voice": ("microphone", self.tr("You spoke")),
            "sample": ("wave", self.tr("Sample question")),
            "text": ("keyboard", self.tr("You typed")),
        }[self.source]
        self.show_icon(icon, self.look_theme.accent)
        parts = [name]
        if self._cancelled == "nothing_heard":
            parts.append(self.tr("nothing was heard"))
        elif self._cancelled is not None:
            parts.append(self.tr("dropped"))
        elif self.seconds is None and self._progress is not None:
            heard, length = (f"{value:.1f}" for value in self._progress)
            parts.append(self.tr("%1 of %2 s").replace("%1", heard).replace("%2", length))
        elif self.seconds is None and self.source != "text":
            parts.append(self.tr("listening …"))
        elif self.seconds:
            parts.append(self.tr("%1 s").replace("%1", f"{self.seconds:.1f}"))
        self.caption.setText(" · ".join(parts))
        self.setAccessibleName(", ".join([*parts, self.body.text()]))
        self.fit_width()


class ReplyBubble(Bubble):
    """The reply: text or subtitle, length, latencies, and a button that plays it again. If the reply was cut,
    the heard part is above a mark and the rest, dimmed, below it.

    Signals:
        play_again: the button was pressed; the turn's id.
    """

    play_again = Signal(int)

    def __init__(self, turn_id: int, theme: Theme, icons: Icons, parent: QWidget | None = None) -> None:
        super().__init__("reply", theme, icons, parent)
        self.turn_id = turn_id
        self.seconds = 0.0
        self._modality: Modality | None = None
        self._finish: FinishReason | None = None
        self._cancelled: CancelReason | None = None
        self._is_playing = False
        self.was_heard = False
        self._times: TurnTimes | None = None
        self._heard_s: float | None = None
        """Seconds that were heard of a reply that was cut."""
        self.mark, self.mark_text, self._mark_icon = QWidget(), PlainLabel(), PlainLabel()
        self.rest = PlainLabel()
        self._lay_out_cut()
        self.figures = PlainLabel()
        self.figures.setProperty("role", "small")
        self.figures.hide()
        self.again = QPushButton()
        self.again.setProperty("role", "link")
        self.again.clicked.connect(lambda: self.play_again.emit(self.turn_id))
        self.again.hide()
        self.more = QToolButton()
        self.more.setText("⋯")
        self.more.setAutoRaise(True)
        self.more.clicked.connect(
            lambda: self.menu_wanted.emit(self.more.mapToGlobal(self.more.rect().bottomLeft()))
        )
        self.head.addWidget(self.more)
        self._tail = QHBoxLayout()
        self._tail.setSpacing(10)
        self._tail.addWidget(self.again)
        self._tail.addStretch(1)
        self._tail.addWidget(self.figures)
        self.column.addLayout(self._tail)
        self.retranslate()

    def add_text(self, text: str) -> None:
        """More text of the reply."""
        self.set_body(self.body.text() + text)
        self.retranslate()

    def start_playing(self) -> None:
        """The reply is being heard."""
        self._is_playing = True
        self.retranslate()

    def stop_playing(self) -> None:
        """The reply was heard."""
        self._is_playing = False
        self.was_heard = True
        self.retranslate()

    @property
    def is_playing(self) -> bool:
        """Whether the reply is being heard."""
        return self._is_playing

    def show_finished(self, modality: Modality, seconds: float, text: str, reason: FinishReason) -> None:
        """The reply is complete."""
        self._modality, self.seconds, self._finish = modality, seconds, reason
        if text:
            self.set_body(text)
        self.again.setVisible(modality is Modality.SPEECH and seconds > 0)
        self.retranslate()

    def show_cancelled(self, reason: CancelReason) -> None:
        """The reply was stopped."""
        self.was_heard = self.was_heard or self._is_playing
        self._cancelled, self._is_playing = reason, False
        self.retranslate()

    def show_cut(self, modality: Modality, heard_text: str, unheard_text: str, heard_s: float) -> None:
        """The reply was stopped; show the part that was heard."""
        self._modality, self._heard_s = modality, heard_s
        heard_text, unheard_text = heard_text.strip(), unheard_text.strip()
        if heard_text:  # a comma belongs to the word before it
            rest = unheard_text.lstrip(_CLOSING_MARKS)
            heard_text += unheard_text[: len(unheard_text) - len(rest)]
            unheard_text = rest.lstrip()
        self.set_body(heard_text)
        self.rest.setText(unheard_text)
        self.rest.setVisible(bool(self.rest.text()))
        self.mark.show()
        self.again.setVisible(modality is Modality.SPEECH and heard_s > 0)
        self.retranslate()

    def show_times(self, times: TurnTimes) -> None:
        """Show the latencies of the turn."""
        self._times = times
        self.retranslate()

    def tail_width(self) -> int:
        """Width of the mark, the button and the figures."""
        self._tail.invalidate()
        mark = self.mark.sizeHint().width() if self.mark.isVisibleTo(self) else 0
        return max(super().tail_width(), mark, self._tail.sizeHint().width())

    def retranslate(self) -> None:
        """Use the words of the current language."""
        spoken = self._modality is Modality.SPEECH or (self._modality is None and self._is_playing)
        waiting = self._modality is None and not self._is_playing and not self.body.text()
        self.show_icon("wave" if spoken or waiting else "text", self.look_theme.accent)
        parts = ["MOSS"]
        if self._cancelled is not None:
            parts.append(self._why_cancelled(self._cancelled))
        elif waiting:
            parts.append(self.tr("thinking …"))
        parts += self._length()
        if self._is_playing:
            parts.append(self.tr("playing"))
        if self._finish == "length":
            parts.append(self.tr("cut off at the maximum length"))
        self.caption.setText(" · ".join(parts))
        self.again.setText(self.tr("Play again"))
        self.again.setIcon(self.look_icons.icon("replay", self.look_theme.accent))
        self.again.setIconSize(self.look_theme.square(16))
        self.again.setAccessibleName(self.tr("Play this reply again"))
        set_tip(self.more, self.tr("Copy, ask again, delete"))
        self.more.setAccessibleName(self.more.toolTip())
        self._write_figures()
        said = [self.body.text()]
        if self._heard_s is not None:
            self._write_mark(self._heard_s)
            said += [self.mark_text.text(), self.rest.text()]
        self.setAccessibleName(", ".join([*parts, *filter(None, said)]))
        self.fit_width()

    def _length(self) -> list[str]:
        """How long the reply is, and how much of it was heard if it was cut."""
        heard_s, total_s = self._heard_s, self.seconds
        if heard_s is not None and total_s > 0:
            text = self.tr("%1 of %2 s")
            return [text.replace("%1", f"{heard_s:.1f}").replace("%2", f"{total_s:.1f}")]
        shown_s = total_s if heard_s is None else heard_s
        return [self.tr("%1 s").replace("%1", f"{shown_s:.1f}")] if shown_s > 0 else []

    def _write_mark(self, heard_s: float) -> None:
        forgotten = self.tr("The conversation continues as if this question had not been asked.")
        if self._modality is Modality.TEXT and self.body.text():
            text = self.tr("cut here")
            more = self.tr("The conversation continues from what was shown.")
        elif self._modality is Modality.TEXT:
            text, more = self.tr("nothing was shown, so it is not remembered"), forgotten
        elif heard_s > 0:
            text = self.tr("heard up to here")
            more = self.tr("The conversation continues from what was heard. MOSS does not know the rest.")
        else:
            text, more = self.tr("nothing was heard, so it is not remembered"), forgotten
        self.mark_text.setText(text)
        self.mark_text.setAccessibleDescription(more)
        set_tip(self.mark, more)
        icon = self.look_icons.pixmap(
            "cut", self.look_theme.muted, self.look_theme.px(16), self.devicePixelRatioF()
        )
        self._mark_icon.setPixmap(icon)

    def _lay_out_cut(self) -> None:
        self.mark_text.setProperty("role", "small")
        row = QHBoxLayout(self.mark)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(6)
        row.addWidget(self._mark_icon)
        row.addWidget(self.mark_text)
        row.addStretch(1)
        self.mark.hide()
        self.rest.setProperty("role", "muted")
        set_up_text(self.rest)
        self.texts.append(self.rest)
        self.column.addWidget(self.mark)
        self.column.addWidget(self.rest)

    def _write_figures(self) -> None:
        parts = []
        if self._times is not None and self._times.ttfa_ms is not None:
            parts.append(f"TTFA {self._times.ttfa_ms:.0f} ms")
        if self._times is not None and self._times.rtf_total is not None:
            parts.append(f"RTF {self._times.rtf_total:.2f}")
        self.figures.setText("   ".join(parts))
        self.figures.setVisible(bool(parts))

    def _why_cancelled(self, reason: CancelReason) -> str:
        if reason == "barge_in":
            return self.tr("interrupted by you")
        if reason == "output_lost":
            return self.tr("loudspeaker lost")
        return self.tr("failed") if reason == "error" else self.tr("stopped")
