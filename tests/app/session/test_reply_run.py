"""A reply while it is made: how far a speculative one goes."""

from __future__ import annotations

from collections.abc import Generator
from queue import SimpleQueue

import numpy as np
import pytest

from app.session import reply_run
from app.session.engine_jobs import HELD_DELTAS, ReplyMade, ReplyResult, Result
from app.session.reply_run import KeptTimings, ReplyRun
from engine_runtime.conversation.reply_events import ReplyEvents
from engine_runtime.timing import TimingBus, TimingEvent
from engine_runtime.types import CancelScope, Modality, ReplyAudio, ReplyDone, ReplyEvent, ReplyText
from engine_runtime.work import run_alone
from tests.doubles.scripted_engine import reply_of

RATE = 1_000


def reply(chunks: int, modality: Modality = Modality.SPEECH) -> Generator[ReplyEvent, None, None]:
    """Chunks of 0.4 s, or words."""
    for chunk in range(chunks):
        if modality is Modality.SPEECH:
            yield ReplyAudio(1, np.zeros(RATE * 4 // 10, np.float32), RATE, chunk)
        else:
            yield ReplyText(1, "word ")
    yield ReplyDone(1, modality, "stop", "")


def events_of(events: Generator[ReplyEvent, None, None]) -> ReplyEvents:
    return reply_of(events, CancelScope())


def make(run: ReplyRun, results: SimpleQueue[Result]) -> None:
    """All that is to be made now."""
    while run_alone(run.step(results.put)):
        pass


def taken(results: SimpleQueue[Result]) -> list[Result]:
    return [results.get_nowait() for _ in range(results.qsize())]


@pytest.mark.parametrize(("modality", "enough"), [(Modality.SPEECH, 3), (Modality.TEXT, HELD_DELTAS)])
def test_a_speculative_reply_waits_for_its_confirmation(modality: Modality, enough: int) -> None:
    scope, results = CancelScope(), SimpleQueue[Result]()
    run = ReplyRun(scope, events_of(reply(50, modality)), is_speculative=True)
    make(run, results)
    assert len(taken(results)) == enough
    run.is_speculative = False
    make(run, results)
    rest = taken(results)
    events = [result.event for result in rest if isinstance(result, ReplyResult)]
    assert len(events) == 50 - enough + 1
    assert isinstance(events[-1], ReplyDone)
    assert isinstance(rest[-1], ReplyMade) is (modality is Modality.SPEECH)
    assert run.work_ns > 0


def test_a_cancelled_reply_ends_with_the_event_in_progress() -> None:
    scope, results = CancelScope(), SimpleQueue[Result]()

    def cancelled() -> Generator[ReplyEvent, None, None]:
        yield from (event for event in reply(1) if isinstance(event, ReplyAudio))
        scope.cancel()
        yield from reply(5)

    run = ReplyRun(scope, events_of(cancelled()), is_speculative=False)
    make(run, results)
    assert len(taken(results)) == 1
    make(run, results)
    assert taken(results) == []


def test_the_first_events_are_kept_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_run, "_MOST_KEPT", 2)
    bus, heard = TimingBus(), list[TimingEvent]()
    bus.subscribe(heard.append)
    kept = KeptTimings(bus)
    for start_ns in range(3):
        kept.emit("step", 1, start_ns, 5)
    bus.emit("step", 2, 9, 5)
    assert [event.start_ns for event in heard] == [0, 1, 2, 9]
    assert [event.start_ns for event in kept.events] == [0, 1]
