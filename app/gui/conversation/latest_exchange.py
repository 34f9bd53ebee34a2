"""The latest question and its reply as two texts, for windows that show no more of the conversation.

In: events of the session through the bridge. Out: `question`, `reply` and `changed`. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from app.gui.common.bridge import SessionBridge
from app.session.events import (
    ReplyCut,
    ReplyTextDelta,
    TurnCancelled,
    TurnCommitted,
    TurnExtended,
    TurnOpened,
    TurnTranscribed,
)


class LatestExchange(QObject):
    """Follows the turn that was opened last.

    Attributes:
        reply: the text of the reply so far, or what was heard of it.

    Signals:
        changed: there is another question or reply.
    """

    changed = Signal()

    def __init__(self, bridge: SessionBridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.reply = ""
        self._turn_id = 0
        self._asked: str | float = ""
        """What was typed or understood, or the length of the speech in seconds; 0.0 while the user speaks."""
        bridge.turn_opened.connect(self._open)
        bridge.turn_committed.connect(self._commit)
        bridge.turn_transcribed.connect(self._caption)
        bridge.turn_extended.connect(self._take_back)
        bridge.turn_cancelled.connect(self._take_back)
        bridge.reply_text.connect(self._add)
        bridge.reply_cut.connect(self._cut)

    @property
    def question(self) -> str:
        """What the user asked, in the language of the window; "" before the first turn."""
        if isinstance(self._asked, str):
            return self._asked
        if self._asked:
            return self.tr("You spoke %1 s").replace("%1", f"{self._asked:.1f}")
        return self.tr("You speak …")

    def _open(self, event: TurnOpened) -> None:
        self._turn_id = event.turn_id
        self._show(event.text or 0.0, "")

    def _commit(self, event: TurnCommitted) -> None:
        if event.turn_id == self._turn_id and event.seconds:
            self._show(event.seconds, self.reply)

    def _caption(self, event: TurnTranscribed) -> None:
        if event.turn_id == self._turn_id:
            self._show(event.text, self.reply)

    def _take_back(self, event: TurnExtended | TurnCancelled) -> None:
        if event.turn_id == self._turn_id and (isinstance(event, TurnExtended) or not self.reply):
            self._show(0.0 if isinstance(event, TurnExtended) else "", "")

    def _add(self, event: ReplyTextDelta) -> None:
        if event.turn_id == self._turn_id:
            self._show(self._asked, self.reply + event.text)

    def _cut(self, event: ReplyCut) -> None:
        if event.turn_id == self._turn_id:
            self._show(self._asked, f"{event.heard_text.rstrip()} …" if event.heard_text else "")

    def _show(self, asked: str | float, reply: str) -> None:
        self._asked, self.reply = asked, reply
        self.changed.emit()
