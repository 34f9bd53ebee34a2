"""Conversation: the exchanges so far, and how much of them the KV cache holds.

In: finished exchanges. Out: the rows that the model should see for the next turn, oldest first: the system
turn of the requested modality, the exchanges still kept, the current turn. The history consists of rows and
is independent of the cache: after a cancel, an error, a change of modality or an eviction, `Sequence` is
aligned to these rows again and only the difference is prefilled. Engine thread.
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
"""Number of latest spoken turns used to estimate the level of the next one."""


@dataclass(frozen=True, slots=True)
class Question:
    """A complete user turn, to be asked again; fields as those of an Exchange."""

    user: tuple[Row, ...]
    speech_maximum: float | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """A user turn and its reply, complete turns of the chat layout. `text` is the text reply, or the
    transcript of a spoken one if the model writes it. `speech_maximum` is that of the log10 mel power of a
    spoken turn."""

    user: tuple[Row, ...]
    reply: tuple[Row, ...]
    text: str = ""
    speech_maximum: float | None = None
    turn_id: int = 0

    @property
    def num_rows(self) -> int:
        """Rows of both turns."""
        return len(self.user) + len(self.reply)


class ActiveTurn(Protocol):
    """The interface of the latest turn to its conversation."""

    turn_id: int

    @property
    def is_over(self) -> bool:
        """Whether it is done or cancelled."""

    @property
    def is_replying(self) -> bool:
        """Whether it is committed, and its reply is not complete."""

    def cancel(self) -> None:
        """Stop the turn."""

    def close(self) -> None:
        """End the turn in any state; it cannot be reopened."""


@dataclass(eq=False)
class Conversation:
    """One conversation. Created by `Engine.new_conversation`.

    Attributes:
        exchanges: all exchanges, oldest first; an interrupted reply up to the point that was heard.
        num_forgotten: number of the oldest exchanges dropped from the model's context
            (conversation/context_window.py).
        sequence: the rows that the KV cache holds.
        turn: the latest turn.
        seed: seed of the replies where no other is given.
        num_commits: replies requested so far, without those reverted by a reopen.
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
        """The sampling parameters of the next reply, with a seed of its own."""
        self.num_commits += 1
        seed = self.seed if params.seed is None else params.seed
        return replace(params, seed=reply_seed(seed, self.num_commits))

    def return_draws(self) -> None:
        """The latest reply was reverted: the next one gets its seed."""
        self.num_commits -= 1

    def history(self) -> list[Row]:
        """Rows of the system turn and of the kept exchanges."""
        kept = self.exchanges[self.num_forgotten :]
        said = chain.from_iterable((*exchange.user, *exchange.reply) for exchange in kept)
        return [*self.prompt.system(self.modality), *said]

    def plan(self, current: list[Row], reserve: int) -> list[Row]:
        """All rows that the model should see, with `current` (the user's turn so far) at the end.

        Drops the oldest exchanges if fewer than `reserve` rows would remain for the rest of the turn and its
        reply. Raises ContextLengthError, having dropped nothing, if `current` does not fit at all.
        """
        kept = [exchange.num_rows for exchange in self.exchanges[self.num_forgotten :]]
        system_rows = len(self.prompt.system(self.modality))
        self.num_forgotten += num_dropped(system_rows, kept, len(current), reserve, self.limit)
        return [*self.history(), *current]

    def replace(self, old: Exchange | None, new: Exchange | None) -> None:
        """Replace `old` by `new`. None for `old` appends `new`, None for `new` removes `old`."""
        if old is None:
            self.exchanges += [] if new is None else [new]
            return
        place = next(index for index, exchange in enumerate(self.exchanges) if exchange is old)
        self.exchanges[place : place + 1] = [] if new is None else [new]
        if new is None and place < self.num_forgotten:
            self.num_forgotten -= 1

    def remove(self, turn_ids: range) -> None:
        """Remove the exchanges of these turns, as if they had never been."""
        for exchange in [known for known in self.exchanges if known.turn_id in turn_ids]:
            self.replace(exchange, None)

    @property
    def expected_maximum(self) -> float | None:
        """Estimate of `speech_maximum` of the next spoken turn: the (lower) median of the latest spoken
        turns, so that one loud noise, such as a slammed door, has no effect. Kept per conversation, since it
        depends on the user's level."""
        maxima = (exchange.speech_maximum for exchange in reversed(self.exchanges))
        latest = [*islice((maximum for maximum in maxima if maximum is not None), SPOKEN_TURNS)]
        return median_low(latest) if latest else None

    @property
    def is_resting(self) -> bool:
        """Whether no turn is in progress, so that its KV blocks can be evicted."""
        return self.turn is None or self.turn.is_over
