"""The turn in progress: opened, committed, reopened, and stopped or ended. At most one at a time.

In: what voice, keyboard and window decided about the turn. Out: jobs for the engine, the reply for the
player, the transcript, the events TurnOpened, TurnExtended and TurnCancelled. Dialog thread.
"""

from __future__ import annotations

from collections.abc import Callable

from app.dialog.conversation import ConversationRecord
from app.session.decisions import Decisions
from app.session.engine_jobs import Cancel, Commit, Interrupt, JobQueue, OpenTurn, Reopen
from app.session.events import (
    CancelReason,
    Event,
    ReplyCut,
    TurnCancelled,
    TurnExtended,
    TurnOpened,
    TurnSource,
)
from app.session.reply_player import ReplyPlayer, UserTurn
from app.session.speculation import Speculation
from app.session.speech_feed import SpeechFeed
from engine_runtime.types import CancelScope, Modality


class TurnLifecycle:
    """Holds the turn in progress; `feed` streams its speech, `speculation` and `player` have its reply."""

    def __init__(
        self,
        worker: JobQueue,
        feed: SpeechFeed,
        speculation: Speculation,
        player: ReplyPlayer,
        transcript: ConversationRecord,
        decisions: Decisions,
        emit: Callable[[Event], None],
    ) -> None:
        self.turn: UserTurn | None = None
        self.feed = feed
        self.speculation = speculation
        self.player = player
        self._worker = worker
        self._transcript = transcript
        self._decisions = decisions
        self._emit = emit
        self._count = 0

    @property
    def turn_id(self) -> int:
        """The turn in progress, or the latest one."""
        return self.turn.turn_id if self.turn else self._count

    def continue_after(self, last_turn_id: int) -> None:
        """Turn ids continue after those of an earlier run of the program."""
        self._count = max(self._count, last_turn_id)

    def open(self, source: TurnSource, reply: Modality, text: str = "") -> UserTurn:
        """A turn begins; `text` is its question if it is typed."""
        self._count += 1
        turn = self.turn = UserTurn(self._count, reply)
        self._emit(TurnOpened(turn.turn_id, source, text))
        self._transcript.open(turn.turn_id, turn.modality, text)
        self._worker.submit(OpenTurn(turn.turn_id, turn.modality, turn.scope))
        return turn

    def repeat(self, turn_id: int, modality: Modality) -> None:
        """The reply of an earlier turn is to be played again."""
        self.turn = UserTurn(turn_id, modality)
        self.player.begin(self.turn, is_repetition=True)

    def commit(self, turn: UserTurn, seed: int | None) -> None:
        """The turn is complete: its speculative reply is played, or a reply is made."""
        if self.speculation.is_held:
            held = self.speculation.confirm()
            turn.commit = held.scope
            self.player.begin_held(turn, held)
            return
        turn.commit = CancelScope(turn.scope)
        self.player.begin(turn)
        self._worker.submit(Commit(turn.turn_id, turn.modality, seed, turn.commit))

    def reopen(self, turn: UserTurn) -> None:
        """The user continues the committed turn: the reply is discarded."""
        self.player.take_back()
        if turn.commit is not None:
            turn.commit.cancel()
            self._worker.submit(Reopen(turn.turn_id, turn.commit))
        self._decisions.report("roll_back", turn.turn_id, is_speculative=0)
        self._emit(TurnExtended(turn.turn_id))

    def stop(self, turn: UserTurn, reason: CancelReason) -> None:
        """Drop the turn, or cut its reply unless it was fully played."""
        if self.player.is_complete:
            self.end()
            return
        turn.scope.cancel()
        reply = self.player.stop()
        self.turn = None
        self.feed.close()
        cut: ReplyCut | None = None
        if reply is not None:
            self._worker.submit(Interrupt(turn.turn_id, reply.samples_heard, len(reply.text)))
            cut = self.player.cut(reply, reason)
        else:
            if self.speculation.is_held:
                self.speculation.drop()
            else:
                self._worker.submit(Cancel(turn.turn_id))
            self._transcript.drop(turn.turn_id)
        self._emit(TurnCancelled(turn.turn_id, reason))
        if cut is not None:
            heard_ms, made_ms = cut.heard_s * 1e3, cut.made_s * 1e3
            self._decisions.report("cut", turn.turn_id, reason=reason, heard_ms=heard_ms, made_ms=made_ms)

    def end(self) -> None:
        """The reply, or its repetition, came to its end."""
        self.turn = None
        self.feed.close()
        self.player.end()
