"""The turns of one conversation in the engine, one event at a time."""

from __future__ import annotations

from app.session.engine_history import EngineHistory
from app.session.engine_jobs import (
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
    ReplyResult,
    Result,
    TurnFailed,
    UseFlowSteps,
)
from app.session.engine_turns import KEPT_TURNS, EngineTurns
from engine_runtime.errors import Problem
from engine_runtime.types import CancelScope, Modality, ReplyAudio
from engine_runtime.work import run_alone
from tests.doubles.scripted_engine import Script, ScriptedEngine


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
    rig.do(Remember(1, "two plus three", "five"))
    assert ("remember", 1, "two plus three", "five") in rig.engine.calls


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
