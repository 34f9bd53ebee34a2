"""The items that the model's history lacks, and how much of them the engine's open turn has.

In: items of the client, committed speech, and the jobs of the turn driver, which pass through. Out: these
jobs, and before them what gives the engine the items that it lacks. All user items since the last reply are
one turn of the engine. Items that one of the assistant answers become an exchange of the history, once no
turn is open. Their content is kept until then, so an open turn may be dropped at any time: the next one is
given everything again. Event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby, takewhile

import numpy as np

from app.server.items import Item
from app.session.engine_jobs import Ask, Commit, Hear, Job, JobQueue, OpenTurn, Remember
from engine_runtime.types import Pcm, ToolOutput

Content = str | Pcm
"""A text of the user, the system (SystemText) or a tool (ToolOutput), or speech at the engine's rate."""


@dataclass(frozen=True, slots=True)
class PendingItem:
    """An item, with the content that the engine is given."""

    item: Item
    parts: tuple[Content, ...]
    tokens: int
    """Tokens of the context that they take."""

    @property
    def is_reply(self) -> bool:
        """Whether it is the assistant's."""
        return self.item.role == "assistant"


class PendingItems:
    """The `JobQueue` of a turn driver."""

    def __init__(
        self, jobs: JobQueue, reserve_turn_id: Callable[[], int], count_tokens: Callable[[Content], int]
    ) -> None:
        """`reserve_turn_id` makes the id of an exchange for the history; `count_tokens` says how much of
        the context a text or speech takes."""
        self._jobs, self._reserve_turn_id, self._count_tokens = jobs, reserve_turn_id, count_tokens
        self._items: list[PendingItem] = []
        self._given = 0
        """Number of the first items that are in the open turn."""
        self._said: list[Pcm] = []
        """Speech of the open turn that is not an item yet."""
        self._turn_id: int | None = None
        """The open turn."""

    @property
    def has_question(self) -> bool:
        """Whether the user has said or typed something since the last reply, or a tool has a result."""
        return any(known.item.is_question for known in self._open_items)

    @property
    def has_speech(self) -> bool:
        """Whether the open turn has speech that is not an item yet."""
        return bool(self._said)

    @property
    def samples(self) -> int:
        """Length of what was said since the last reply, at the engine's rate."""
        parts = [part for known in self._open_items for part in known.parts]
        return sum(len(part) for part in parts if not isinstance(part, str))

    @property
    def tokens(self) -> int:
        """Tokens of the context that the items since the last reply take."""
        return sum(known.tokens for known in self._open_items)

    def submit(self, job: Job) -> None:
        """Pass a job on. A turn that begins is given what waits, and so is one that is committed."""
        if isinstance(job, Commit):
            self.give()
        if isinstance(job, OpenTurn):
            self._remember()
        self._jobs.submit(job)
        if isinstance(job, Hear):
            self._said.append(job.pcm)
        elif isinstance(job, OpenTurn):
            self._turn_id = job.turn_id
            self.give()

    def add(self, item: Item, parts: tuple[Content, ...], before: Item | None = None) -> None:
        """Another item that the engine has not got, before one that waits, or at the end."""
        places = (place for place, known in enumerate(self._items) if known.item is before)
        self._items.insert(max(next(places, len(self._items)), self._given), self._pending(item, parts))
        if self._turn_id is None:
            self._remember()

    def give(self) -> None:
        """Give the open turn, if there is one, what it lacks."""
        if self._turn_id is None:
            return
        rest = list(takewhile(lambda known: not known.is_reply, self._items[self._given :]))
        self._given += len(rest)
        for known in rest:
            known.item.turn_id = self._turn_id
        parts = [part for known in rest for part in known.parts]
        for kind, group in groupby(parts, type):
            given = list(group)
            if kind is ToolOutput:  # each is a turn of the layout
                for output in given:
                    self._jobs.submit(Ask(self._turn_id, ToolOutput(output)))
            elif issubclass(kind, str):
                self._jobs.submit(Ask(self._turn_id, kind("\n".join(map(str, given)))))
            else:
                spoken = [part for part in given if not isinstance(part, str)]
                self._jobs.submit(Hear(self._turn_id, np.concatenate(spoken)))

    def commit_speech(self, item: Item) -> Pcm:
        """What was said in the open turn is this item; returns it."""
        item.turn_id = self._turn_id
        said = np.concatenate([np.zeros(0, dtype=np.float32), *self._said])
        self._items.insert(self._given, self._pending(item, (said,)))
        self._given += 1
        self._said = []
        return said

    def has(self, item: Item) -> bool:
        """Whether the item waits."""
        return any(known.item is item for known in self._items)

    def has_given(self, item: Item) -> bool:
        """Whether the item is in the open turn."""
        return any(known.item is item for known in self._items[: self._given])

    def remove(self, item: Item) -> None:
        """The item no longer waits; if the turn has it, it stays there until the turn is dropped."""
        self._given -= self.has_given(item)
        self._items = [known for known in self._items if known.item is not item]

    def take_back(self) -> None:
        """The open turn is dropped: all items wait for another one, and what was said is forgotten."""
        for known in self._items:
            known.item.turn_id = None
        self._forget_turn()

    def end_exchange(self) -> None:
        """The items that were given are answered, or cannot be. Others wait."""
        del self._items[: self._given]
        self._forget_turn()

    def _pending(self, item: Item, parts: tuple[Content, ...]) -> PendingItem:
        return PendingItem(item, parts, sum(map(self._count_tokens, parts)))

    @property
    def _open_items(self) -> Iterator[PendingItem]:
        """Those after the last reply."""
        return takewhile(lambda known: not known.is_reply, reversed(self._items))

    def _remember(self) -> None:
        """Give the engine the exchanges among the items, up to the last reply, as history."""
        answered = self._items[: len(self._items) - sum(1 for _ in self._open_items)]
        del self._items[: len(answered)]
        question: list[PendingItem] = []
        for known in answered:
            question.append(known)
            if known.is_reply:
                turn_id = self._reserve_turn_id()
                for one in question:
                    one.item.turn_id = turn_id
                asked = tuple(part for one in question[:-1] for part in one.parts)
                self._jobs.submit(Remember(turn_id, asked, known.item.reply))
                question = []

    def _forget_turn(self) -> None:
        self._given, self._said, self._turn_id = 0, [], None
        self._remember()
