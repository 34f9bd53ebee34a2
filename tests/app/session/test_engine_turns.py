"""The turns of one conversation in the engine, one event at a time."""

from __future__ import annotations

from collections.abc import Generator
from queue import SimpleQueue

import numpy as np
import pytest

from app.session import engine_turns
from app.session.engine_jobs import (
    HELD_DELTAS,
    Ask,
    Commit,
    FlowSteps,
    FlowStepsSet,
    Forget,
    Interrupt,
    Job,
    OpenTurn,
    Remember,
    Remove,
    ReplyMade,
    ReplyResult,
    Result,
    TurnFailed,
    UseFlowSteps,
)
from app.session.engine_turns import KEPT_TURNS, EngineHistory, EngineTurns, KeptTimings, ReplyRun
from engine_runtime.conversation.reply_events import ReplyEvents
from engine_runtime.errors import Problem
from engine_runtime.timing import TimingBus, TimingEvent
from engine_runtime.types import CancelScope, Modality, ReplyAudio, ReplyDone, ReplyEvent, ReplyText
from engine_runtime.work import run_alone
from tests.doubles.scripted_engine import Script, ScriptedEngine, reply_of

RATE = 1_000


class Rig:
    def __init__(self, script: Script | None = None) -> None:
        self.engine = ScriptedEngine(script)
        self.results: list[Result] = []
        history = EngineHistory(self.engine, self.results.append)
        self.turns = EngineTurns(history, self.results.append)

    def do(self, *jobs: Job) -> None:
        for job in jobs:
            run_alone(self.turns.carry_out(job))

    def ask(self, turn_id: int) -> None:
        self.do(OpenTurn(turn_id, Modality.SPEECH, CancelScope()), Ask(turn_id, "count"))
        self.do(Commit(turn_id, Modality.SPEECH, None, CancelScope(), max_new=7))
        while run_alone(self.turns.advance()):
            pass

    def truncated(self) -> list[object]:
        return [call[1] for call in self.engine.calls if call[0] == "truncate"]


def test_a_reply_is_made_one_event_at_a_time() -> None:
    rig = Rig(Script(chunks=2))
    assert not run_alone(rig.turns.advance())
    rig.do(OpenTurn(1, Modality.SPEECH, CancelScope()), Commit(1, Modality.SPEECH, None, CancelScope()))
    counts = []
    while run_alone(rig.turns.advance()):
        counts.append(len(rig.results))
    assert counts == [2, 3, 4, 5, 7], (
        "after the history a word and its sound twice, and the end with the time it took"
    )
    sounds = [result for result in rig.results if isinstance(result, ReplyResult)]
    assert sum(isinstance(result.event, ReplyAudio) for result in sounds) == 2


def test_the_longest_reply_of_a_commit_is_at_most_the_bundles() -> None:
    rig = Rig()
    rig.ask(1)
    (call,) = [call for call in rig.engine.calls if call[0] == "commit"]
    assert call[3].max_new == 7  # type: ignore[attr-defined]


def test_an_earlier_reply_can_be_cut() -> None:
    rig = Rig()
    for turn_id in range(1, KEPT_TURNS + 2):
        rig.ask(turn_id)
    rig.do(Interrupt(1, 10, 0))
    assert rig.truncated() == [], "too long ago"
    rig.do(Interrupt(2, 10, 0), Interrupt(KEPT_TURNS + 1, 10, 0))
    assert rig.truncated() == [2, KEPT_TURNS + 1]


def test_a_removed_reply_is_not_cut() -> None:
    rig = Rig()
    rig.ask(1)
    rig.ask(2)
    rig.do(Remove(1), Interrupt(1, 10, 0))
    assert rig.truncated() == []
    rig.ask(3)
    rig.do(Forget(), Interrupt(2, 10, 0))
    assert rig.truncated() == []


def test_an_exchange_of_elsewhere_is_remembered() -> None:
    rig = Rig()
    rig.do(Remember(1, ("two plus three",), "five"))
    assert ("remember", 1, ("two plus three",), "five") in rig.engine.calls


def test_a_reply_that_fails_later_names_its_turn() -> None:
    rig = Rig(Script(fail_on="reply"))
    rig.ask(1)
    assert rig.results[-2] == TurnFailed(1, Problem("The engine is out of order.", "Repair it."))
    assert not run_alone(rig.turns.advance())


def test_flow_steps_are_chosen_and_confirmed() -> None:
    rig = Rig()
    rig.do(UseFlowSteps(4), UseFlowSteps(None))
    assert rig.engine.calls == [("use_flow_steps", 4), ("use_flow_steps", None)]
    assert rig.results == [FlowStepsSet(FlowSteps(4, 10)), FlowStepsSet(FlowSteps(10, 10))]


def test_refused_flow_steps_drop_no_turn() -> None:
    rig = Rig(Script(fail_on="use_flow_steps"))
    rig.do(OpenTurn(1, Modality.SPEECH, CancelScope()), UseFlowSteps(4))
    assert rig.results == [
        FlowStepsSet(FlowSteps(10, 10), Problem("The engine is out of order.", "Repair it."))
    ]
    rig.do(Ask(1, "count"), Commit(1, Modality.SPEECH, None, CancelScope()))
    assert rig.engine.names_of(1) == ["open", "push_text", "commit"]


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
    monkeypatch.setattr(engine_turns, "MOST_KEPT_TIMINGS", 2)
    bus, heard = TimingBus(), list[TimingEvent]()
    bus.subscribe(heard.append)
    kept = KeptTimings(bus)
    for start_ns in range(3):
        kept.emit("step", 1, start_ns, 5)
    bus.emit("step", 2, 9, 5)
    assert [event.start_ns for event in heard] == [0, 1, 2, 9]
    assert [event.start_ns for event in kept.events] == [0, 1]
