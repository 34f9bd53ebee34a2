"""Changes to the conversation so far: a turn is deleted or asked again, an earlier conversation is continued.

In: commands of the user. Out: jobs for the engine, TurnsRemoved. Dialog thread.
"""

from __future__ import annotations

from collections.abc import Callable

from app.audio.wav import WavReader
from app.dialog.conversation import TranscriptTurn
from app.session.commands import (
    ContinueConversation,
    DeleteTurn,
    PlayRecording,
    RetryTurn,
)
from app.session.engine_jobs import AskAgain, JobQueue, Remove, Restore
from app.session.events import Event, TurnsRemoved
from app.session.turn_control import TurnControl

_MOST_PLAYED_S = 300.0
"""Longest part of a recording that is played, because it is read into memory at once."""


class ConversationEdits:
    """Edits the turns of one session."""

    def __init__(self, turns: TurnControl, worker: JobQueue, emit: Callable[[Event], None]) -> None:
        self._turns = turns
        self._worker = worker
        self._emit = emit

    def delete(self, command: DeleteTurn) -> None:
        """Remove one turn, also from what is kept of it; its reply is stopped if it is in progress."""
        turns = self._turns
        if turns.state is not None and turns.turn_id == command.turn_id:
            turns.cancel("user")
        self._worker.submit(Remove(command.turn_id))
        self._remove((command.turn_id,), is_deleted=True)

    def retry(self, command: RetryTurn) -> None:
        """Ask the question of a turn again, in its place."""
        turns, earlier_id = self._turns, command.turn_id
        turns.cancel("replaced")
        self._remove(tuple(range(earlier_id, turns.turn_id + 1)))
        turns.answer(command.source, command.text, lambda turn_id: AskAgain(turn_id, earlier_id))

    def play(self, command: PlayRecording) -> None:
        """Play a part of a recording. AudioInputError if it cannot be read."""
        with WavReader(command.path) as reader:
            rate = reader.format.sample_rate
            reader.skip(max(round(command.start_s * rate), 0))
            sound = reader.read(round(min(command.seconds, _MOST_PLAYED_S) * rate))
        self._turns.play(TranscriptTurn(0, sample_rate=rate, chunks=[sound]))

    def begin_with(self, command: ContinueConversation) -> None:
        """Continue an earlier conversation instead of the current one."""
        self._turns.cancel("replaced")
        self._turns.transcript.clear()
        self._turns.continue_after(command.last_turn_id)
        self._worker.submit(Restore(command.history))

    def _remove(self, turn_ids: tuple[int, ...], *, is_deleted: bool = False) -> None:
        for turn_id in turn_ids:
            self._turns.transcript.drop(turn_id)
        self._emit(TurnsRemoved(turn_ids, is_deleted))
