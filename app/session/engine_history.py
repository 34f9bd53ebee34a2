"""The engine's conversation: begun, continued, shortened; its history is published when it has changed.

In: jobs about the history. Out: results HistoryChanged, Restored, RestoreFailed. Engine thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.session.engine_jobs import (
    AskAgain,
    Forget,
    Heard,
    HistoryChanged,
    Remember,
    Remove,
    Restore,
    Restored,
    RestoreFailed,
    Result,
)
from engine_runtime.errors import MossVoiceError
from engine_runtime.work import Task

if TYPE_CHECKING:  # they import torch
    from engine_runtime.conversation.history import Question
    from engine_runtime.conversation.snapshot import ConversationSnapshot
    from engine_runtime.conversation.turn import Turn
    from engine_runtime.engine import Engine


class ForgottenQuestionError(MossVoiceError):
    """The question to be asked again is unknown."""


class EngineHistory:
    """One conversation of one engine."""

    def __init__(self, engine: Engine, give: Callable[[Result], None]) -> None:
        self.conversation = engine.new_conversation()
        self.engine = engine
        self._give = give
        self._questions: dict[int, Question] = {}
        """All that were committed, also those whose reply was not heard, by turn."""
        self._published: ConversationSnapshot | None = None

    def change(self, job: Forget | Remove | Remember | Restore) -> Task[None]:
        """Execute a job that concerns no turn in progress."""
        if isinstance(job, Remove):
            self._remove(range(job.turn_id, job.turn_id + 1))
        elif isinstance(job, Forget):
            self.engine.end_conversation(self.conversation)
            self.conversation = self.engine.new_conversation()
            self._questions.clear()
        elif isinstance(job, Remember):
            yield from self.engine.remember(self.conversation, job.turn_id, job.question, job.reply)
        else:
            self._restore(job)

    def continue_from(self, earlier: ConversationSnapshot | None) -> bool:
        """Continue the conversation of another engine; False if the model is another one, and a new
        conversation has begun. One without exchanges is nothing to continue."""
        if earlier is None or not earlier.exchanges:
            return True
        try:
            self._adopt(earlier)
        except MossVoiceError:
            return False
        return True

    def close(self) -> None:
        """End the conversation."""
        self.engine.end_conversation(self.conversation)

    def note_question(self, turn: Turn) -> None:
        """The turn was committed."""
        self._questions[turn.turn_id] = turn.question

    def ask_again(self, turn: Turn, job: AskAgain) -> Task[None]:
        """Cut the history back to before an earlier turn, and give its question to `turn`."""
        question = self._questions.get(job.earlier_id)
        if question is None:
            raise ForgottenQuestionError(
                "That question is not remembered any more.", "Ask it again yourself."
            )
        self._remove(range(job.earlier_id, turn.turn_id))
        if codes := (yield from turn.push_question(question)):
            self._give(Heard(turn.turn_id, codes))

    @property
    def snapshot(self) -> ConversationSnapshot:
        """The history as it is now. It shares the rows, so this is cheap."""
        return self.engine.snapshot(self.conversation)

    def publish(self) -> None:
        """Publish the history if it changed."""
        snapshot = self.snapshot
        if snapshot != self._published:
            self._published = snapshot
            self._give(HistoryChanged(snapshot))

    def _remove(self, turn_ids: range) -> None:
        self.engine.remove(self.conversation, turn_ids)
        for turn_id in turn_ids:
            self._questions.pop(turn_id, None)

    def _restore(self, job: Restore) -> None:
        from engine_runtime.conversation.snapshot import ConversationSnapshot

        try:
            self._adopt(ConversationSnapshot.of(job.history))
        except MossVoiceError as error:
            self._give(RestoreFailed(error.problem))
            return
        self.publish()
        self._give(Restored())

    def _adopt(self, snapshot: ConversationSnapshot) -> None:
        """Continue the conversation of a snapshot instead of the present one. Raises MossVoiceError."""
        from engine_runtime.conversation.history import Question

        restored = self.engine.restore(snapshot)
        self.engine.end_conversation(self.conversation)
        self.conversation = restored
        known = self.engine.snapshot(restored).exchanges
        self._questions = {
            exchange.turn_id: Question(exchange.user, exchange.speech_maximum) for exchange in known
        }
