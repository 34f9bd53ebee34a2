"""The live transcript: bubbles in the order of the turns, driven by the events of the session.

User turns are on the right, replies on the left. The newest stays visible unless the user scrolls up.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from PySide6.QtCore import QCoreApplication, QEvent, QPoint, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QAbstractButton,
    QApplication,
    QFrame,
    QHBoxLayout,
    QLayout,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from app.gui.common.bridge import SessionBridge
from app.gui.common.icons import Icons
from app.gui.common.themes import Theme
from app.gui.common.translation import FollowsLanguage
from app.gui.common.turn_times import TurnTimes
from app.gui.conversation.bubbles import Bubble, ReplyBubble, UserBubble
from app.gui.conversation.welcome import Welcome
from app.session.events import (
    Levels,
    PlaybackFinished,
    PlaybackStarted,
    ReplyCut,
    ReplyFinished,
    ReplyTextDelta,
    SampleProgress,
    SessionState,
    TurnCancelled,
    TurnCommitted,
    TurnExtended,
    TurnOpened,
    TurnsRemoved,
    TurnTranscribed,
)
from app.session.transcript import RecordedEvent, TurnText, beginnings_of, turn_texts
from engine_runtime.bundle.card import ModelCard

MOST_TURNS = 300
"""Turns that can be scrolled to; older ones leave at the top."""
ON_SCREEN = 40
"""Turns that have bubbles while the newest is in view: the widgets of a turn take 0.3 MB."""
_SHARE = 0.86
_NEAR = 24
"""Distance in pixels from the top or bottom that still counts as being there."""
_REPEATED = (
    *(TurnOpened, TurnExtended, TurnCommitted, TurnTranscribed, TurnCancelled),
    *(ReplyTextDelta, ReplyFinished, ReplyCut),
)
"""Events of a record that are shown."""
_PAGE = 20
"""Earlier turns that get bubbles again when the top is reached."""


@dataclass(slots=True)
class _Turn:
    user: UserBubble
    reply: ReplyBubble | None = None
    shown: list[Any] = field(default_factory=list)
    """The events that made the bubbles, and the latencies."""


@dataclass(frozen=True, slots=True)
class _EarlierTurn:
    """A turn without bubbles: what makes them again, without the picture of the loudness."""

    label: str
    shown: list[Any]


class Transcript(FollowsLanguage, QScrollArea):
    """The conversation.

    Signals:
        play_again: the button of a reply was pressed; the turn's id.
        menu_wanted: the menu of a turn was requested; its id and the place on the screen.
    """

    play_again = Signal(int)
    menu_wanted = Signal(int, QPoint)

    def __init__(
        self, theme: Theme, icons: Icons, parent: QWidget | None = None, *, is_record: bool = False
    ) -> None:
        """The turns of a record cannot be changed, so they have no menu."""
        super().__init__(parent)
        self._is_record = is_record
        self._theme, self._icons = theme, icons
        self._turns: OrderedDict[int, _Turn] = OrderedDict()
        self._earlier: OrderedDict[int, _EarlierTurn] = OrderedDict()
        self._top: int | None = None
        """Where in the column bubbles of earlier turns are put; None for the end."""
        self._below: int | None = None
        """Height below the view, which is kept while earlier turns are added above it."""
        self._rows: dict[Bubble, QHBoxLayout] = {}
        """Each bubble beside free space."""
        self._hearing: UserBubble | None = None
        self._sample_label, self._sample_seconds = "", 0.0
        self._began_s: dict[int, float] = {}
        """When each question began, in seconds since the conversation did."""
        self._origin_s: float | None = None
        """When the conversation began, by `time.monotonic`; None before its first turn."""
        self._follows = True
        self.welcome = Welcome(theme, icons)
        self._body = QWidget()
        self._column = QVBoxLayout(self._body)
        self._lay_out()
        self.welcome.setHidden(is_record)
        self.retranslate()

    @property
    def turn_count(self) -> int:
        """How many turns can be seen by scrolling."""
        return len(self._earlier) + len(self._turns)

    def bubbles(self, turn_id: int) -> tuple[UserBubble | None, ReplyBubble | None]:
        """The bubbles of a turn, if it is on screen."""
        turn = self._turns.get(turn_id)
        return (None, None) if turn is None else (turn.user, turn.reply)

    def follow_session(self, bridge: SessionBridge) -> None:
        """Show what the session reports from now on."""
        bridge.levels.connect(self.show_levels)
        bridge.turn_opened.connect(self.open_turn)
        bridge.turn_extended.connect(self.extend_turn)
        bridge.turn_committed.connect(self.commit_turn)
        bridge.turn_transcribed.connect(self.caption_turn)
        bridge.turn_cancelled.connect(self.cancel_turn)
        bridge.turns_removed.connect(self.remove_turns)
        bridge.reply_text.connect(self.add_reply_text)
        bridge.reply_cut.connect(self.cut_reply)
        bridge.playback_started.connect(self.start_playback)
        bridge.playback_finished.connect(self.finish_playback)
        bridge.reply_finished.connect(self.finish_reply)
        bridge.sample_progress.connect(self.show_sample_progress)

    def show_state(self, state: SessionState) -> None:
        """Invite to ask, unless the session cannot answer."""
        self.welcome.show_available(state is not SessionState.ERROR)

    def announce_sample(self, label: str, seconds: float) -> None:
        """The next turn of a sample is this question; an empty label withdraws the announcement."""
        self._sample_label, self._sample_seconds = label, seconds

    def show_sample_progress(self, event: SampleProgress) -> None:
        """Show how much of the sample was heard."""
        if self._hearing is not None and self._hearing.source == "sample":
            self._hearing.show_progress(event.seconds, self._sample_seconds)

    def open_turn(self, event: TurnOpened) -> None:
        """Show a bubble for the spoken or typed question."""
        label = self._sample_label if event.source == "sample" else ""
        self._sample_label = "" if label else self._sample_label
        bubble = UserBubble(event.source, event.text, label, self._theme, self._icons)
        self._turns[event.turn_id] = _Turn(bubble, shown=[event])
        self._hearing = bubble if event.source != "text" else None
        self._began_s.setdefault(event.turn_id, self._elapsed_s())
        self._offer_menu(event.turn_id, bubble)
        self._add(bubble, Qt.AlignmentFlag.AlignRight)
        while self._follows and len(self._turns) > ON_SCREEN:
            self._put_away(next(iter(self._turns)))
        while self.turn_count > MOST_TURNS:
            self._remove_turn(next(iter(self._earlier or self._turns)))

    def extend_turn(self, event: TurnExtended) -> None:
        """The user continues: remove the reply."""
        if (turn := self._turns.get(event.turn_id)) is None:
            return
        turn.shown = turn.shown[:1]
        self._drop_reply(turn)
        turn.user.show_reopened()
        self._hearing = turn.user

    def commit_turn(self, event: TurnCommitted) -> None:
        """The turn has ended: show its length and an empty reply."""
        if (turn := self._turns.get(event.turn_id)) is None:
            return
        self._hearing = None
        turn.shown.append(event)
        turn.user.show_committed(event.seconds)
        self._drop_reply(turn)
        self._reply(event.turn_id)

    def caption_turn(self, event: TurnTranscribed) -> None:
        """A spoken turn in words, which may come when its bubbles are gone."""
        if (turn := self._turns.get(event.turn_id)) is not None:
            turn.user.show_caption(event.text)
            turn.shown.append(event)
        elif (earlier := self._earlier.get(event.turn_id)) is not None:
            earlier.shown.append(event)

    def cancel_turn(self, event: TurnCancelled) -> None:
        """Mark the turn as dropped; one that was too short is removed."""
        if (turn := self._turns.get(event.turn_id)) is None:
            return
        if self._hearing is turn.user:
            self._hearing = None
        turn.shown.append(event)
        if event.reason == "too_short":
            self._remove_turn(event.turn_id)
        elif turn.reply is not None:
            turn.reply.show_cancelled(event.reason)
        else:
            turn.user.show_cancelled(event.reason)

    def add_reply_text(self, event: ReplyTextDelta) -> None:
        """More text of a reply."""
        if (reply := self._reply(event.turn_id)) is not None:
            reply.add_text(event.text)

    def start_playback(self, event: PlaybackStarted) -> None:
        """A reply begins to be heard."""
        for turn in self._turns.values():
            if turn.reply is not None and turn.reply.is_playing:
                turn.reply.stop_playing()
        if (reply := self._reply(event.turn_id)) is not None:
            reply.start_playing()

    def finish_playback(self, event: PlaybackFinished) -> None:
        """A reply was heard."""
        if (turn := self._turns.get(event.turn_id)) is not None and turn.reply is not None:
            turn.shown.append(event)
            turn.reply.stop_playing()

    def finish_reply(self, event: ReplyFinished) -> None:
        """A reply is complete."""
        if (reply := self._reply(event.turn_id)) is not None:
            self._turns[event.turn_id].shown.append(event)
            reply.show_finished(event.modality, event.seconds, event.text, event.finish_reason)

    def cut_reply(self, event: ReplyCut) -> None:
        """Show how much of a reply was heard before it was stopped."""
        if (turn := self._turns.get(event.turn_id)) is not None and turn.reply is not None:
            turn.shown.append(event)
            turn.reply.show_cut(event.modality, event.heard_text, event.unheard_text, event.heard_s)

    def show_levels(self, event: Levels) -> None:
        """Draw the loudness of the turn that is heard and of the reply that is playing for the first time."""
        if self._hearing is not None:
            self._hearing.add_level(event.input_dbfs)
        for turn in reversed(self._turns.values()):
            if turn.reply is not None and turn.reply.is_playing and not turn.reply.was_heard:
                turn.reply.add_level(event.output_dbfs)
                break

    def show_times(self, times: TurnTimes) -> None:
        """Show the latency of a turn below its reply."""
        if (turn := self._turns.get(times.turn_id)) is not None and turn.reply is not None:
            figures = TurnTimes(times.turn_id, ttfa_ms=times.ttfa_ms, rtf_total=times.rtf_total)  # no spans
            turn.shown = [known for known in turn.shown if not isinstance(known, TurnTimes)] + [figures]
            turn.reply.show_times(times)

    def clear(self) -> None:
        """Start over with an empty conversation."""
        self._earlier.clear()
        for turn_id in list(self._turns):
            self._remove_turn(turn_id)
        self._began_s.clear()
        self._origin_s = None
        self._hearing = None
        self._follows = True
        self.welcome.setHidden(self._is_record)

    def show_card(self, card: ModelCard, server: str) -> None:
        """Show in an empty conversation what the model can do; `server` hears what is said, "" for none."""
        self.welcome.show_card(card, server)
        _chain(self, self.welcome.examples)

    def remove_turns(self, event: TurnsRemoved) -> None:
        """These turns are no longer part of the conversation."""
        for turn_id in event.turn_ids:
            if (turn := self._turns.get(turn_id)) is not None and self._hearing is turn.user:
                self._hearing = None
            if turn is not None or turn_id in self._earlier:
                self._remove_turn(turn_id)

    def turn_texts(self) -> list[TurnText]:
        """The turns on show that were answered, as text; a sample question has that of its label."""
        turns = [(earlier.label, earlier.shown) for earlier in self._earlier.values()]
        turns += [(turn.user.label, turn.shown) for turn in self._turns.values()]
        found = [(label, text) for label, shown in turns for text in turn_texts(shown, self._began_s)]
        return [replace(text, question=label or text.question) for label, text in found]

    def show_recorded(self, events: Iterable[RecordedEvent]) -> None:
        """Show a conversation that was recorded, the latest `MOST_TURNS` turns of it."""
        self.clear()
        events = list(events)
        shown = set(
            [known.event.turn_id for known in events if isinstance(known.event, TurnOpened)][-MOST_TURNS:]
        )
        self._began_s = beginnings_of(events)
        if events:
            self._origin_s = time.monotonic() - events[-1].t
        for recorded in events:
            if isinstance(recorded.event, _REPEATED) and recorded.event.turn_id in shown:
                self._repeat(recorded.event)
        self._hearing = None

    @property
    def turn_ids(self) -> list[int]:
        """The turns that can be seen by scrolling, in their order."""
        return [*self._earlier, *self._turns]

    def _elapsed_s(self) -> float:
        now_s = time.monotonic()
        if self._origin_s is None:
            self._origin_s = now_s
        return now_s - self._origin_s

    def _repeat(self, event: Any) -> None:
        """Show an event, or latencies, as if it had just arrived."""
        show: dict[type, Callable[[Any], None]] = {
            TurnOpened: self.open_turn,
            TurnExtended: self.extend_turn,
            TurnCommitted: self.commit_turn,
            TurnTranscribed: self.caption_turn,
            TurnCancelled: self.cancel_turn,
            ReplyTextDelta: self.add_reply_text,
            ReplyFinished: self.finish_reply,
            ReplyCut: self.cut_reply,
            PlaybackFinished: self.finish_playback,
            TurnTimes: self.show_times,
        }
        show[type(event)](event)

    def set_theme(self, theme: Theme) -> None:
        """Take the colours of a theme."""
        self._theme = theme
        self.welcome.set_theme(theme)
        for bubble in self._all_bubbles():
            bubble.set_theme(theme)

    def retranslate(self) -> None:
        """Use the words of the current language."""
        self.setAccessibleName(self.tr("Conversation"))

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Adapt the bubbles to the width."""
        super().resizeEvent(event)
        for bubble in self._all_bubbles():
            bubble.set_widest(self._widest())

    def _widest(self) -> int:
        return int(self.viewport().width() * _SHARE) - 20

    def _all_bubbles(self) -> list[Bubble]:
        turns = self._turns.values()
        return [bubble for turn in turns for bubble in (turn.user, turn.reply) if bubble is not None]

    def _reply(self, turn_id: int) -> ReplyBubble | None:
        """The reply bubble of a turn, created if missing; None for a turn that is not shown."""
        if (turn := self._turns.get(turn_id)) is None:
            return None
        if turn.reply is None:
            turn.reply = ReplyBubble(turn_id, self._theme, self._icons)
            turn.reply.play_again.connect(self.play_again)
            turn.reply.more.setHidden(self._is_record)
            self._offer_menu(turn_id, turn.reply)
            self._add(turn.reply, Qt.AlignmentFlag.AlignLeft)
        return turn.reply

    def _add(self, bubble: Bubble, side: Qt.AlignmentFlag) -> None:
        self.welcome.hide()
        bubble.set_widest(self._widest())
        place = self._column.count() - 1 if self._top is None else self._top
        # In the column itself a bubble would get the height of its text at the width of the column.
        row = self._rows[bubble] = QHBoxLayout()
        self._column.insertLayout(place, row)
        row.addWidget(bubble)
        row.insertStretch(0 if side == Qt.AlignmentFlag.AlignRight else 1, 1)
        bubble.show()  # now: the layout would do it in the next turn of the event loop
        self._order_focus(bubble, place)
        self._top = None if self._top is None else place + 1

    def _order_focus(self, bubble: Bubble, place: int) -> None:
        """Let Tab reach the buttons of a bubble after those above it, not after the rest of the window."""
        rows = (self._column.itemAt(above) for above in range(place - 1, 0, -1))
        parts = (part for row in rows if row is not None for part in _widgets_in(row.layout()))
        above = next(filter(None, (part.findChildren(QAbstractButton) for part in parts)), None)
        _chain(self if above is None else above[-1], bubble.findChildren(QAbstractButton))

    def _offer_menu(self, turn_id: int, bubble: Bubble) -> None:
        bubble.menu_wanted.connect(lambda place: self.menu_wanted.emit(turn_id, place))

    def _drop_reply(self, turn: _Turn) -> None:
        if turn.reply is not None:
            self._discard(turn.reply)
            turn.reply = None

    def _remove_turn(self, turn_id: int) -> None:
        if self._earlier.pop(turn_id, None) is None:
            turn = self._turns.pop(turn_id)
            self._drop_reply(turn)
            self._discard(turn.user)
        if not self._turns:
            self._show_earlier()
        if not self.turn_count:
            self.welcome.setHidden(self._is_record)

    def _put_away(self, turn_id: int) -> None:
        """Drop the bubbles of the oldest turn on screen, and keep its events."""
        turn = self._turns.pop(turn_id)
        label = turn.user.label
        is_whole = any(isinstance(event, ReplyFinished | ReplyCut) for event in turn.shown)
        if turn.reply is not None and not is_whole and (text := turn.reply.body.text()):
            turn.shown.append(ReplyTextDelta(turn_id, text, False))
        self._earlier[turn_id] = _EarlierTurn(label, turn.shown)
        self._drop_reply(turn)
        self._discard(turn.user)

    def _show_earlier(self) -> None:
        """Give the latest of the earlier turns bubbles again. What is in view stays there."""
        page = [self._earlier.popitem() for _ in range(min(_PAGE, len(self._earlier)))]
        if not page:
            return
        bar, hearing, label = self.verticalScrollBar(), self._hearing, self._sample_label
        self._below = bar.maximum() - bar.value()
        follows, self._follows = self._follows, False  # so that none is put away at once
        self._top = 1  # below the welcome
        for _, turn in reversed(page):
            self._sample_label = turn.label
            for event in turn.shown:
                self._repeat(event)
        for turn_id, _ in page:
            self._turns.move_to_end(turn_id, last=False)
        self._top, self._hearing, self._sample_label, self._follows = None, hearing, label, follows
        # Lay out now: until then the scroll bar has the old range.
        QCoreApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest.value)
        self._below = None

    def _discard(self, bubble: Bubble) -> None:
        if bubble.isAncestorOf(QApplication.focusWidget() or self):
            self.setFocus()  # else the next widget gets it, and the view scrolls there
        row = self._rows.pop(bubble)
        self._column.removeItem(row)
        row.deleteLater()
        bubble.hide()
        bubble.deleteLater()

    def _note_position(self) -> None:
        bar = self.verticalScrollBar()
        self._follows = not self.turn_count or bar.value() >= bar.maximum() - _NEAR
        if bar.value() <= _NEAR and not self._follows and self._below is None:
            self._show_earlier()

    def _follow(self) -> None:
        if self._below is not None:
            self.verticalScrollBar().setValue(self.verticalScrollBar().maximum() - self._below)
        elif self._follows and self.turn_count:  # the welcome is read from its top
            self.verticalScrollBar().setValue(self.verticalScrollBar().maximum())

    def _lay_out(self) -> None:
        self.setProperty("role", "reading")
        self._body.setProperty("role", "plain")
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._column.setContentsMargins(16, 14, 16, 14)
        self._column.setSpacing(10)
        self._column.addWidget(self.welcome)
        self._column.addStretch(1)
        self.setWidget(self._body)
        self.verticalScrollBar().valueChanged.connect(self._note_position)
        self.verticalScrollBar().rangeChanged.connect(self._follow)


def _widgets_in(layout: QLayout | None) -> list[QWidget]:
    items = [] if layout is None else [layout.itemAt(index) for index in range(layout.count())]
    return [widget for item in items if item is not None and (widget := item.widget()) is not None]


def _chain(before: QWidget, after: Iterable[QWidget]) -> None:
    """Let Tab lead from the first to the others."""
    for first, second in pairwise([before, *after]):
        QWidget.setTabOrder(first, second)
