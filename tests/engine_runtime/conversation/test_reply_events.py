"""The events of a reply as an iterator and as tasks."""

from __future__ import annotations

from engine_runtime.conversation.reply_events import ReplyEvents
from engine_runtime.types import CancelScope, Modality, ReplyDone, ReplyEvent, ReplyText
from engine_runtime.work import SingleWork, Task, run_alone

DONE = ReplyDone(1, Modality.TEXT, "stop", "")


class Reply:
    """Makes two events at a time, after a step that makes none."""

    def __init__(self, count: int = 5) -> None:
        self.scope = CancelScope()
        self.steps = 0
        self.delivered: list[ReplyEvent] = []
        self.is_stopped = False
        self._left = count
        self.events = ReplyEvents(self.scope, self._advance, self._deliver)

    def _advance(self) -> Task[list[ReplyEvent]]:
        self.steps += 1
        yield SingleWork("step", lambda: None)
        if self.is_stopped or not self._left:
            return [DONE]
        if self.steps % 2:
            return []
        count = min(self._left, 2)
        self._left -= count
        return [ReplyText(1, f"word{self._left + place} ") for place in range(count)]

    def _deliver(self, event: ReplyEvent) -> bool:
        if self.is_stopped and not isinstance(event, ReplyDone):
            return False
        self.delivered.append(event)
        return True


def test_all_events_up_to_the_last_once() -> None:
    reply = Reply()
    events = list(reply.events)
    assert [isinstance(event, ReplyText) for event in events] == [True] * 5 + [False]
    assert events == reply.delivered
    assert run_alone(reply.events.next_event()) is None


def test_a_stopped_reply_gives_only_its_end() -> None:
    reply = Reply()
    first = next(reply.events)
    reply.is_stopped = True
    assert list(reply.events) == [DONE]
    assert reply.delivered == [first, DONE], "the second event of the step was not delivered"


def test_a_reverted_commit_and_a_closed_iterator_give_nothing_more() -> None:
    reverted, closed = Reply(), Reply()
    next(reverted.events)
    reverted.scope.cancel()
    assert list(reverted.events) == []
    next(closed.events)
    closed.events.close()
    assert list(closed.events) == []
    assert closed.steps == 2
