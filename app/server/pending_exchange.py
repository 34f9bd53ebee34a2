"""The user's side of one exchange: items that wait for a reply, on their way to the engine.

In: typed text, recordings, committed speech. Out: engine jobs. Speech goes to the engine while it is spoken;
what conversation.item.create brings waits until it is answered, by the model or by an item of the assistant.
All items since the last reply are one turn of the engine, which takes either speech or text. Event loop.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from app.server.items import Item
from app.server.protocol import ProtocolError
from app.session.engine_jobs import Ask, Cancel, Commit, Hear, Interrupt, JobQueue, OpenTurn, Remember, Reopen
from app.session.engine_turns import KEPT_TURNS
from engine_runtime.types import CancelScope, Modality, Pcm


class PendingExchange:
    """One after the other; `turn_id` is that of the turn which is open, or of the reply in progress."""

    def __init__(self, jobs: JobQueue, engine_rate: int, longest_s: float, seed: int | None = None) -> None:
        """`seed` is that of the sampling, None for the bundle's or else one for each conversation."""
        self.turn_id: int | None = None
        """The engine's open turn, None if there is none."""
        self.is_speaking = False
        """Whether speech was given to the engine that is not committed as an item."""
        self._jobs = jobs
        self._engine_rate = engine_rate
        self._longest_s = longest_s
        self._seed = seed
        self._scope = CancelScope()
        self._count = 0
        self._cuttable: deque[int] = deque(maxlen=KEPT_TURNS)
        self._waiting: list[tuple[Item, Pcm | None]] = []
        """Items that the engine has not got."""
        self._committed: list[Item] = []
        """Those that it has."""
        self._speech_s = 0.0

    @property
    def can_be_answered(self) -> bool:
        """Whether there are items to reply to."""
        return bool(self._waiting or self._committed)

    def open(self, modality: Modality) -> int:
        """Speech begins; returns the engine's turn. It continues the turn of items that were not answered."""
        self.is_speaking = True
        if self.turn_id is None:
            self._begin(modality)
            spoken = [waiting for waiting in self._waiting if waiting[1] is not None]
            self._waiting = [waiting for waiting in self._waiting if waiting[1] is None]
            for item, pcm in spoken:
                self._give(item, pcm)
        return self._begun

    def make_room(self, seconds: float) -> None:
        """More speech is about to come. ProtocolError if the turn is as long as it may be."""
        if self._speech_s + seconds > self._longest_s:
            raise ProtocolError(
                "turn_too_long",
                f"A turn has at most {self._longest_s:g} s of audio. Commit it, or clear the buffer.",
                "audio",
            )
        self._speech_s += seconds

    def commit_speech(self, item: Item) -> None:
        """The speech so far is this item."""
        if self._waiting:
            raise ProtocolError(
                "mixed_turn", "A turn is either spoken or typed. Ask for a response to the typed items first."
            )
        item.turn_id = self._begun
        self._committed.append(item)
        self.is_speaking = False

    def drop_speech(self) -> None:
        """The speech so far is no item. What was committed before stays."""
        self.is_speaking = False
        if self.turn_id is not None and not self._committed:
            self._end(Cancel(self.turn_id))

    def add(self, item: Item, pcm: Pcm | None) -> None:
        """A typed item, or a recording at the engine's rate."""
        if self._is_spoken is (pcm is None):
            raise ProtocolError(
                "mixed_turn", "A turn is either spoken or typed: create a response first.", "item"
            )
        if pcm is not None:
            self.make_room(len(pcm) / self._engine_rate)
        if self.turn_id is not None:
            self._give(item, pcm)
        else:
            self._waiting.append((item, pcm))

    def answer(self, reply: Item) -> None:
        """An item of the assistant answers what waits: an exchange that was held elsewhere."""
        if self.turn_id is not None or not self._waiting:
            raise ProtocolError(
                "no_question", "An item of the assistant has to follow a user item that was created.", "item"
            )
        self._count += 1
        spoken = [pcm for _, pcm in self._waiting if pcm is not None]
        question = np.concatenate(spoken) if spoken else "\n".join(item.text for item, _ in self._waiting)
        for item in (*(item for item, _ in self._waiting), reply):
            item.turn_id = self._count
        self._jobs.submit(Remember(self._count, question, reply.text))
        self._waiting = []
        self._clear()

    def commit(self, modality: Modality, scope: CancelScope, max_new: int | None) -> int:
        """Ask for the reply; returns the engine's turn."""
        if self.turn_id is None:
            self._begin(modality)
        typed = [item for item, pcm in self._waiting if pcm is None]
        for item, pcm in self._waiting:
            self._give(item, pcm)
        if typed:
            self._jobs.submit(Ask(self._begun, "\n".join(item.text for item in typed)))
        self._waiting = []
        self._jobs.submit(
            Commit(self._begun, modality, self._seed, scope, max_new=max_new, reports_stages=True)
        )
        return self._begun

    def end(self) -> None:
        """The reply is complete."""
        self.turn_id = None
        self._clear()

    def reopen(self, scope: CancelScope) -> None:
        """Nothing of the reply of `scope` was sent: the items wait for another one."""
        self._jobs.submit(Reopen(self._begun, scope))

    def cut(self, turn_id: int, samples: int, characters: int = 0) -> None:
        """No more than this was heard of the reply of a turn."""
        job = Interrupt(turn_id, samples, characters)
        if turn_id == self.turn_id:
            self._end(job)
        else:
            self._jobs.submit(job)

    def can_cut(self, turn_id: int) -> bool:
        """Whether the reply of this turn can still be cut."""
        return turn_id in self._cuttable

    def fail(self) -> None:
        """The engine has dropped the turn."""
        self.turn_id = None
        self.is_speaking = False
        self._clear()

    def withdraw(self, item: Item) -> bool:
        """Take an item back that the engine has not got; False if it has."""
        kept = [waiting for waiting in self._waiting if waiting[0] is not item]
        was_waiting = len(kept) < len(self._waiting)
        self._waiting = kept
        return was_waiting

    @property
    def _begun(self) -> int:
        if self.turn_id is None:
            raise RuntimeError("no turn is open")
        return self.turn_id

    @property
    def _is_spoken(self) -> bool | None:
        """Whether what waits for a reply is speech; None if nothing does."""
        if self.is_speaking:
            return True
        kinds = [item.content_type for item in (*self._committed, *(item for item, _ in self._waiting))]
        return kinds[-1] == "input_audio" if kinds else None

    def _begin(self, modality: Modality) -> None:
        self._count += 1
        self.turn_id, self._scope = self._count, CancelScope()
        self._cuttable.append(self.turn_id)
        self._jobs.submit(OpenTurn(self.turn_id, modality, self._scope))

    def _give(self, item: Item, pcm: Pcm | None) -> None:
        if pcm is not None:
            self._jobs.submit(Hear(self._begun, pcm))
        item.turn_id = self._begun
        self._committed.append(item)

    def _end(self, job: Cancel | Interrupt) -> None:
        self._scope.cancel()
        self._jobs.submit(job)
        self.turn_id = None
        self._clear()

    def _clear(self) -> None:
        self._committed = []
        self._speech_s = 0.0
