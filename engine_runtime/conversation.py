"""Conversation: what was said so far, and how much of it the KV cache holds.

In: finished exchanges. Out: the rows that the model should see for the next turn, oldest first: the system
turn of the wanted modality, the exchanges that are still kept, the current turn. The history is rows, not
cache: after a cancel, an error, a change of modality or blocks given to another conversation, `Sequence` is
aligned to these rows again and only what differs is prefilled. Engine thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from engine_runtime.lm.context import num_dropped
from engine_runtime.lm.generation import Row
from engine_runtime.lm.sequence import Sequence
from engine_runtime.prompt import Prompt
from engine_runtime.types import Modality

if TYPE_CHECKING:
    from engine_runtime.turn import Turn


@dataclass(frozen=True, slots=True)
class Exchange:
    """A user turn and its reply, complete turns of the chat layout."""

    user: tuple[Row, ...]
    reply: tuple[Row, ...]

    @property
    def num_rows(self) -> int:
        """Rows of both turns."""
        return len(self.user) + len(self.reply)


@dataclass(eq=False)
class Conversation:
    """One conversation. Made by `Engine.new_conversation`.

    Attributes:
        exchanges: everything that was said, oldest first; nothing is ever removed but a reply that is taken
        back.
        num_forgotten: the oldest exchanges that the model does not see any more (lm/context.py).
        sequence: the rows that the KV cache holds.
        turn: the latest turn.
    """

    prompt: Prompt
    limit: int
    exchanges: list[Exchange] = field(default_factory=list)
    num_forgotten: int = 0
    modality: Modality = Modality.SPEECH
    sequence: Sequence = field(default_factory=Sequence)
    turn: Turn | None = None

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

    @property
    def is_resting(self) -> bool:
        """Whether no turn is in progress, so that its KV blocks can be lent out."""
        return self.turn is None or self.turn.is_over
