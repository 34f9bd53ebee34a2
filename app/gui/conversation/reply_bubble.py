"""Chat bubble of a reply: its text, length and latencies, and what was heard of it if it was cut.

In: text deltas, playback, the end of the reply. Out: the bubble; `play_again`. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import QSize, Signal
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QToolButton, QWidget

from app.gui.common.icons import Icons
from app.gui.common.plain_text import PlainLabel, set_tip
from app.gui.common.themes import Theme
from app.gui.common.turn_times import TurnTimes
from app.gui.conversation.bubble import Bubble, set_up_text
from app.session.events import CancelReason
from engine_runtime.types import FinishReason, Modality

_CLOSING = ",.;:!?…)]}”’»，。、；：！？）】》」』"


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
        self.again.setIconSize(QSize(16, 16))
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

    def finish(self, modality: Modality, seconds: float, text: str, reason: FinishReason) -> None:
        """The reply is complete."""
        self._modality, self.seconds, self._finish = modality, seconds, reason
        if text:
            self.set_body(text)
        self.again.setVisible(modality is Modality.SPEECH and seconds > 0)
        self.retranslate()

    def cancel(self, reason: CancelReason) -> None:
        """The reply was stopped."""
        self.was_heard = self.was_heard or self._is_playing
        self._cancelled, self._is_playing = reason, False
        self.retranslate()

    def cut(self, modality: Modality, heard_text: str, unheard_text: str, heard_s: float) -> None:
        """The reply was stopped; show the part that was heard."""
        self._modality, self._heard_s = modality, heard_s
        heard_text, unheard_text = heard_text.strip(), unheard_text.strip()
        if heard_text:  # a comma belongs to the word before it
            rest = unheard_text.lstrip(_CLOSING)
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
        self.again.setAccessibleName(self.tr("Play this reply again"))
        set_tip(self.more, self.tr("Copy, ask again, delete"))
        self.more.setAccessibleName(self.more.toolTip())
        self._write_figures()
        said = [self.body.text()]
        if self._heard_s is not None:
            self._write_mark(self._heard_s)
            said += [self.mark_text.text(), self.rest.text()]
        self.setAccessibleName(", ".join([*parts, *filter(None, said)]))
        self.fit()

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
        icon = self.look_icons.pixmap("cut", self.look_theme.muted, 16, self.devicePixelRatioF())
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
