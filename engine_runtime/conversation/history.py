"""Conversation: what was said so far, and how much of it the KV cache holds.

In: finished exchanges. Out: the rows that the model should see for the next turn, oldest first: the system
turn of the wanted modality, the exchanges that are still kept, the current turn. The history is rows, not
cache: after a cancel, an error, a change of modality or blocks given to another conversation, `Sequence` is
aligned to these rows again and only what differs is prefilled. Engine thread.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from statistics import median_low
from typing import Protocol

from engine_runtime.conversation.context_window import num_dropped
from engine_runtime.lm.chat_template import Prompt
from engine_runtime.lm.generation import Row
from engine_runtime.lm.sampler import reply_seed
from engine_runtime.lm.sequence import Sequence
from engine_runtime.types import Modality, SamplingParams

SPOKEN_TURNS = 3
"""How many of the latest spoken turns say how loud the next one will be."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A user turn and its reply, complete turns of the chat layout. `text` is the reply, or what a spoken one
    says, where the model writes that. `speech_maximum` is that of the log10 mel power of a spoken turn."""

    user: tuple[Row, ...]
    reply: tuple[Row, ...]
    text: str = ""
    speech_maximum: float | None = None

    @property
    def num_rows(self) -> int:
        """Rows of both turns."""
        return len(self.user) + len(self.reply)


class ActiveTurn(Protocol):
    """What a conversation knows of its latest turn."""

    @property
    def is_over(self) -> bool:
        """Whether it is done or cancelled."""

    def cancel(self) -> None:
        """Stop it. Safe from any thread."""

    def close(self) -> None:
        """End it, whatever its state; it cannot be reopened."""


@dataclass(eq=False)
class Conversation:
    """One conversation. Made by `Engine.new_conversation`.

    Attributes:
        exchanges: everything that was said, oldest first; a reply that was cut as far as it was heard.
        num_forgotten: the oldest exchanges that the model does not see any more
        (conversation/context_window.py).
        sequence: the rows that the KV cache holds.
        turn: the latest turn.
        seed: what replies draw from where no other seed is given.
        num_commits: replies that were asked for so far, those that were taken back included.
    """

    prompt: Prompt
    limit: int
    exchanges: list[Exchange] = field(default_factory=list)
    num_forgotten: int = 0
    modality: Modality = Modality.SPEECH
    sequence: Sequence = field(default_factory=Sequence)
    turn: ActiveTurn | None = None
    seed: int = field(default_factory=lambda: secrets.randbits(63))
    num_commits: int = 0

    def next_draws(self, params: SamplingParams) -> SamplingParams:
        """The parameters of the next reply, which draws like no other of this conversation."""
        self.num_commits += 1
        seed = self.seed if params.seed is None else params.seed
        return replace(params, seed=reply_seed(seed, self.num_commits))

    def history(self) -> list[Row]:
        """Rows of the system turn and of the exchanges that are kept."""
        kept = self.exchanges[self.num_forgotten :]
        said = chain.from_iterable((*exchange.user, *exchange.reply) for exchange in kept)
        return [*self.prompt.system(self.modality), *said]

    def plan(self, current: list[Row], reserve: int) -> list[Row]:
        """All rows that the model should see, with `current` (the user's turn so far) at the end.

        Forgets the oldest exchanges where `reserve` rows would not be left for the rest of the turn and its
        reply. Raises ContextLengthError if `current` does not fit at all; nothing is forgotten then.
        """
        kept = [exchange.num_rows for exchange in self.exchanges[self.num_forgotten :]]
        system_rows = len(self.prompt.system(self.modality))
        self.num_forgotten += num_dropped(system_rows, kept, len(current), reserve, self.limit)
        return [*self.history(), *current]

    def replace(self, old: Exchange | None, new: Exchange | None) -> None:
        """Put `new` in the place of `old`. None for `old` adds it, None for `new` leaves nothing there."""
        if old is None:
            self.exchanges += [] if new is None else [new]
            return
        place = next(index for index, exchange in enumerate(self.exchanges) if exchange is old)
        self.exchanges[place : place + 1] = [] if new is None else [new]
        if new is None and place < self.num_forgotten:
            self.num_forgotten -= 1

    @property
    def expected_maximum(self) -> float | None:
        """What to expect of the next spoken turn: the (lower) median of the latest spoken turns, so that a
        slammed door in one of them counts for nothing. It belongs to this conversation, since it says how
        loud its user is."""
        maxima = (exchange.speech_maximum for exchange in reversed(self.exchanges))
        latest = [*islice((maximum for maximum in maxima if maximum is not None), SPOKEN_TURNS)]
        return median_low(latest) if latest else None

    @property
    def is_resting(self) -> bool:
        """Whether no turn is in progress, so that its KV blocks can be lent out."""
        return self.turn is None or self.turn.is_over
