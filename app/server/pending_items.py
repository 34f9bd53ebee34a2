"""The user's items that wait for a reply, and how much of them the engine's open turn has.

In: items of the client, committed speech, and the jobs of the turn driver, which pass through. Out: these
jobs, and before them what gives the turn the items that it lacks. All items since the last reply are one turn
of the engine. Their content is kept until they are answered, so an open turn may be dropped at any time: the
next one is given everything again. Event loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from app.server.items import Item
from app.session.engine_jobs import Ask, Commit, Hear, Job, JobQueue, OpenTurn
from engine_runtime.types import Pcm


@dataclass(frozen=True, slots=True)
class PendingItem:
    """An item, with its text or its speech at the engine's rate."""

    item: Item
    content: str | Pcm


class PendingItems:
    """The `JobQueue` of a turn driver."""

    def __init__(self, jobs: JobQueue) -> None:
        self._jobs = jobs
        self._items: list[PendingItem] = []
        self._given = 0
        """So many of the first items are in the open turn."""
        self._said: list[Pcm] = []
        """Speech of the open turn that is no item yet."""
        self._turn_id: int | None = None
        """The open turn."""

    def __bool__(self) -> bool:
        """Whether there are items to reply to."""
        return bool(self._items)

    @property
    def has_speech(self) -> bool:
        """Whether the open turn has speech that is no item yet."""
        return bool(self._said)

    @property
    def samples(self) -> int:
        """Length of the spoken items, at the engine's rate."""
        return sum(len(known.content) for known in self._items if not isinstance(known.content, str))

    def submit(self, job: Job) -> None:
        """Pass a job on. A turn that begins is given what waits, and so is one that is committed."""
        if isinstance(job, Commit):
            self.give()
        self._jobs.submit(job)
        if isinstance(job, Hear):
            self._said.append(job.pcm)
        elif isinstance(job, OpenTurn):
            self._turn_id = job.turn_id
            self.give()

    def add(self, item: Item, content: str | Pcm) -> None:
        """Another item, which the engine has not got."""
        self._items.append(PendingItem(item, content))

    def give(self) -> None:
        """Give the open turn, if there is one, what it lacks."""
        if self._turn_id is None:
            return
        rest = self._items[self._given :]
        self._given = len(self._items)
        for is_typed, group in groupby(rest, lambda known: isinstance(known.content, str)):
            given = list(group)
            for known in given:
                known.item.turn_id = self._turn_id
            if is_typed:
                self._jobs.submit(Ask(self._turn_id, "\n".join(str(known.content) for known in given)))
            else:
                spoken = [known.content for known in given if not isinstance(known.content, str)]
                self._jobs.submit(Hear(self._turn_id, np.concatenate(spoken)))

    def commit_speech(self, item: Item) -> None:
        """What was said in the open turn is this item."""
        item.turn_id = self._turn_id
        said = np.concatenate([np.zeros(0, dtype=np.float32), *self._said])
        self._items.insert(self._given, PendingItem(item, said))
        self._given += 1
        self._said = []

    def has_given(self, item: Item) -> bool:
        """Whether the item is in the open turn."""
        return any(known.item is item for known in self._items[: self._given])

    def remove(self, item: Item) -> None:
        """The item waits no more; one that was given stays in the turn until that is dropped."""
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

    def question(self) -> str | Pcm | None:
        """All items as one question that is answered elsewhere; None if some are typed and some spoken."""
        texts = [known.content for known in self._items if isinstance(known.content, str)]
        spoken = [known.content for known in self._items if not isinstance(known.content, str)]
        if texts and spoken:
            return None
        return "\n".join(texts) if texts else np.concatenate(spoken)

    def answer(self, turn_id: int) -> None:
        """They were, as this exchange."""
        for known in self._items:
            known.item.turn_id = turn_id
        self._items = []
        self._forget_turn()

    def _forget_turn(self) -> None:
        self._given, self._said, self._turn_id = 0, [], None
