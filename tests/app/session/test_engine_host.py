"""The engine host: order of jobs, stale replies, several conversations, admission, errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest

from app import heap
from app.session.clocks import PendingWork
from app.session.engine_host import Admission, EngineHost, HostFullError, SlotRun
from app.session.engine_jobs import (
    Ask,
    Cancel,
    Commit,
    EngineNotice,
    FlowSteps,
    FlowStepsSet,
    Hear,
    Heard,
    HistoryChanged,
    Interrupt,
    Job,
    Load,
    Loaded,
    LoadFailed,
    OpenTurn,
    Reopen,
    ReplyResult,
    Result,
    TurnFailed,
    UseFlowSteps,
)
from app.session.engine_slot import EngineSlot, EngineSource
from engine_runtime.errors import MossVoiceError, Problem
from engine_runtime.scheduler import TICK_NS, Scheduler
from engine_runtime.thread_owner import ThreadOwner
from engine_runtime.types import CancelScope, Modality, ReplyAudio, ReplyDone
from tests.doubles.scripted_engine import Script, ScriptedEngine
from tests.tools.session_driver import speech

SPEECH = Modality.SPEECH
LIMIT_S = 100.0


def question(turn_id: int) -> list[Job]:
    return [
        OpenTurn(turn_id, SPEECH, CancelScope()),
        Ask(turn_id, "count"),
        Commit(turn_id, SPEECH, None, CancelScope()),
    ]


class Rig:
    """A host in a thread, and its only conversation; `finish` ends it and returns all results."""

    def __init__(self, source: EngineSource) -> None:
        self.pending = PendingWork()
        self.host = EngineHost(source, pending=self.pending)
        self.results: list[Result] = []
        self.slot = self.host.open_slot(self.results.append)
        self.thread = threading.Thread(target=self.host.run, daemon=True)
        self.thread.start()

    def submit(self, *jobs: Job) -> None:
        for job in jobs:
            self.slot.submit(job)

    def finish(self) -> list[Result]:
        """All results but those about the history."""
        assert self.pending.idle.wait(LIMIT_S)
        self.host.close()
        self.thread.join(LIMIT_S)
        assert not self.thread.is_alive()
        return [result for result in self.results if not isinstance(result, HistoryChanged)]


class ScriptedRig(Rig):
    def __init__(self, script: Script | None = None) -> None:
        self.engine = ScriptedEngine(script)
        super().__init__(lambda: self.engine)


@pytest.mark.slow
def test_a_turn_from_speech_to_reply() -> None:
    rig = ScriptedRig()
    rig.submit(OpenTurn(1, SPEECH, CancelScope()))
    rig.submit(Hear(1, speech(0.1)))
    assert rig.pending.idle.wait(LIMIT_S)
    rig.submit(Hear(1, speech(0.1)))
    scope = CancelScope()
    rig.submit(Commit(1, SPEECH, None, scope))
    loaded, *results = rig.finish()
    assert isinstance(loaded, Loaded)
    assert (loaded.bundle, loaded.output_sample_rate) == ("scripted", 24_000)
    assert results[:2] == [Heard(1, 1), Heard(1, 1)]
    replies = [result for result in results if isinstance(result, ReplyResult)]
    assert {reply.scope for reply in replies} == {scope}
    assert isinstance(replies[-1].event, ReplyDone)
    assert rig.engine.ended == [1]
    assert rig.engine.is_closed
    assert rig.pending.idle.is_set()


def test_an_engine_of_somebody_else_stays_open_without_a_conversation() -> None:
    engine = ScriptedEngine()
    Rig(lambda: nullcontext(engine)).finish()
    assert engine.ended == [1]
    assert not engine.is_closed


@pytest.mark.slow
def test_idle_means_nothing_waits() -> None:
    gate = threading.Event()
    rig = ScriptedRig(Script(gate=gate))
    assert rig.pending.idle.wait(LIMIT_S)
    rig.submit(OpenTurn(1, SPEECH, CancelScope()))
    rig.submit(Commit(1, SPEECH, None, CancelScope()))
    assert not rig.pending.idle.wait(0.05)
    gate.set()
    assert rig.pending.idle.wait(LIMIT_S)
    rig.finish()


@pytest.mark.slow
def test_a_cancelled_reply_stops_and_nothing_of_it_arrives() -> None:
    gate = threading.Event()
    rig = ScriptedRig(Script(gate=gate, chunks=1_000))
    scope = CancelScope()
    rig.submit(OpenTurn(1, SPEECH, scope))
    rig.submit(Commit(1, SPEECH, None, CancelScope(scope)))
    while "commit" not in rig.engine.names_of(1):
        pass
    scope.cancel()
    rig.submit(Cancel(1))
    gate.set()
    results = rig.finish()
    assert not [result for result in results if isinstance(result, ReplyResult)]
    assert rig.engine.names_of(1)[-1] == "cancel"


@pytest.mark.slow
def test_an_interrupted_reply_stops_and_the_engine_gets_the_position() -> None:
    gate = threading.Event()
    rig = ScriptedRig(Script(gate=gate, chunks=1_000))
    scope = CancelScope()
    rig.submit(OpenTurn(1, SPEECH, scope))
    rig.submit(Commit(1, SPEECH, None, CancelScope(scope)))
    while "commit" not in rig.engine.names_of(1):
        pass
    scope.cancel()
    rig.submit(Interrupt(1, 1_234, 5))
    gate.set()
    results = rig.finish()
    assert not [result for result in results if isinstance(result, ReplyResult)]
    assert [call for call in rig.engine.calls if call[0] == "truncate"] == [("truncate", 1, 1_234, 5)]


@pytest.mark.slow
def test_a_complete_reply_can_still_be_cut_before_the_next_turn() -> None:
    rig = ScriptedRig()
    rig.submit(OpenTurn(1, SPEECH, CancelScope()))
    rig.submit(Commit(1, SPEECH, None, CancelScope()))
    assert rig.pending.idle.wait(LIMIT_S)
    rig.submit(Interrupt(1, 99, 0))
    rig.submit(OpenTurn(2, SPEECH, CancelScope()))
    rig.finish()
    names = [call[0] for call in rig.engine.calls]
    assert names.index("truncate") < len(names) - 1 - names[::-1].index("open")


@pytest.mark.slow
def test_a_reply_that_failed_takes_the_position_and_nothing_else() -> None:
    rig = ScriptedRig(Script(fail_on="reply"))
    rig.submit(OpenTurn(1, SPEECH, CancelScope()))
    rig.submit(Commit(1, SPEECH, None, CancelScope()))
    assert rig.pending.idle.wait(LIMIT_S)
    rig.submit(Hear(1, speech(0.1)))
    rig.submit(Interrupt(1, 99, 0))
    rig.finish()
    assert rig.engine.names_of(1) == ["open", "commit", "cancel", "truncate"]


@pytest.mark.slow
def test_a_reopened_turn_is_committed_again() -> None:
    gate = threading.Event()
    rig = ScriptedRig(Script(gate=gate))
    rig.submit(OpenTurn(1, SPEECH, CancelScope()))
    first, second = CancelScope(), CancelScope()
    rig.submit(Commit(1, SPEECH, None, first))
    first.cancel()
    rig.submit(Reopen(1, first))
    rig.submit(Hear(1, speech(0.1)))
    rig.submit(Commit(1, SPEECH, None, second))
    gate.set()
    replies = [result for result in rig.finish() if isinstance(result, ReplyResult)]
    assert {reply.scope for reply in replies} == {second}
    assert rig.engine.names_of(1) == ["open", "commit", "reopen", "push", "commit"]


def test_a_turn_that_is_cancelled_before_it_is_opened_never_is() -> None:
    rig = ScriptedRig()
    scope = CancelScope()
    scope.cancel()
    rig.submit(OpenTurn(1, SPEECH, scope))
    rig.submit(Hear(1, speech(0.1)))
    rig.submit(Cancel(1))
    rig.finish()
    assert rig.engine.names_of(1) == []


def test_a_turn_that_is_cancelled_takes_no_more_speech() -> None:
    rig = ScriptedRig()
    scope = CancelScope()
    rig.submit(OpenTurn(1, SPEECH, scope))
    rig.submit(Hear(1, speech(0.1)))
    assert rig.pending.idle.wait(LIMIT_S)
    scope.cancel()
    rig.submit(Hear(1, speech(0.1)))
    rig.submit(Commit(1, SPEECH, None, CancelScope(scope)))
    rig.submit(Cancel(1))
    rig.finish()
    assert rig.engine.names_of(1) == ["open", "push", "cancel"]


@pytest.mark.slow
def test_what_slows_an_engine_down_is_noted_once_it_is_loaded() -> None:
    engine = ScriptedEngine()
    engine.notes = (Problem("The GPU runs plain torch."),)
    loaded, noted = Rig(lambda: engine).finish()
    assert isinstance(loaded, Loaded)
    assert noted == EngineNotice(Problem("The GPU runs plain torch."))


@pytest.mark.slow
def test_jobs_of_another_turn_are_ignored() -> None:
    rig = ScriptedRig()
    rig.submit(Hear(1, speech(0.1)))
    rig.submit(OpenTurn(2, SPEECH, CancelScope()))
    rig.submit(Ask(1, "late"))
    rig.submit(Cancel(1))
    rig.submit(Ask(2, "in time"))
    rig.finish()
    assert rig.engine.names_of(1) == []
    assert rig.engine.names_of(2) == ["open", "push_text"]


@pytest.mark.slow
@pytest.mark.parametrize("call", ["open", "push", "commit", "reply"])
def test_a_failure_names_its_turn_and_drops_it(call: str) -> None:
    rig = ScriptedRig(Script(fail_on=call))
    rig.submit(OpenTurn(1, SPEECH, CancelScope()))
    rig.submit(Hear(1, speech(0.1)))
    rig.submit(Commit(1, SPEECH, None, CancelScope()))
    failures = [result for result in rig.finish() if isinstance(result, TurnFailed)]
    assert failures == [TurnFailed(1, Problem("The engine is out of order.", "Repair it."))]
    if call != "open":
        assert rig.engine.names_of(1)[-1] == "cancel"


def test_an_unexpected_error_while_loading() -> None:
    def fail() -> ScriptedEngine:
        raise FileNotFoundError("weights")

    rig = Rig(fail)
    rig.submit(OpenTurn(1, SPEECH, CancelScope()))
    (result,) = rig.finish()
    assert isinstance(result, LoadFailed)
    assert "FileNotFoundError: weights" in result.problem.what_is_wrong
    assert "doctor" in result.problem.what_to_do


@pytest.mark.slow
def test_another_engine_takes_the_place_of_one_that_cannot_be_loaded() -> None:
    def fail() -> ScriptedEngine:
        raise MossVoiceError("The bundle is damaged.", "Copy it again.")

    rig = Rig(fail)
    rig.submit(Ask(1, "lost"), Load(ScriptedEngine), *question(1))
    failed, loaded, *results = rig.finish()
    assert failed == LoadFailed(Problem("The bundle is damaged.", "Copy it again."))
    assert isinstance(loaded, Loaded)
    assert rig.host.problem is None
    assert isinstance(results[-2], ReplyResult)
    assert isinstance(results[-2].event, ReplyDone)


@pytest.mark.slow
def test_a_job_takes_effect_between_two_events_of_a_reply() -> None:
    gate = threading.Event()
    rig = ScriptedRig(Script(gate=gate))
    rig.submit(*question(1))
    while "commit" not in rig.engine.names_of(1):
        pass
    rig.submit(UseFlowSteps(4))
    gate.set()
    results = rig.finish()
    place = results.index(FlowStepsSet(FlowSteps(4, 10)))
    assert any(isinstance(result, ReplyResult) for result in results[place:])


def host_of(engine: ScriptedEngine, most: int = 1, *, is_batching: bool = True) -> EngineHost:
    def admit(engine: object, scheduler: object) -> Admission:
        return Admission(most, "by --conversations", 0.1)

    return EngineHost(lambda: engine, admit, is_batching=is_batching)


@contextmanager
def running(engine: ScriptedEngine, most: int = 2) -> Iterator[EngineHost]:
    host = host_of(engine, most)
    thread = threading.Thread(target=host.run, daemon=True)
    thread.start()
    assert host.loaded.wait(LIMIT_S)
    try:
        yield host
    finally:
        host.close()
        thread.join(LIMIT_S)
        assert not thread.is_alive()


class Guest:
    """A conversation: what it got, and whether its reply is complete."""

    def __init__(self, host: EngineHost, log: list[str], name: str = "") -> None:
        self.results: list[Result] = []
        self.is_done = threading.Event()
        self._log, self._name = log, name
        self.slot = host.open_slot(self._take)

    def ask(self) -> None:
        self.slot.submit(OpenTurn(1, SPEECH, CancelScope()))
        self.slot.submit(Ask(1, "count"))
        self.slot.submit(Commit(1, SPEECH, None, CancelScope()))

    def _take(self, result: Result) -> None:
        self.results.append(result)
        if isinstance(result, ReplyResult) and isinstance(result.event, ReplyAudio):
            self._log.append(self._name)
        if isinstance(result, TurnFailed) or (
            isinstance(result, ReplyResult) and isinstance(result.event, ReplyDone)
        ):
            self.is_done.set()


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether it holds within the limit; looked at often, and no measure of time."""
    looked = threading.Event()
    return any(condition() or looked.wait(0.005) for _ in range(round(LIMIT_S / 0.005)))


@pytest.mark.slow
def test_conversations_take_turns() -> None:
    gate = threading.Event()
    engine = ScriptedEngine(Script(chunks=20))
    with running(engine) as host:
        engine.script.gate = gate  # the first reply waits until both are asked for
        log: list[str] = []
        guests = [Guest(host, log, name) for name in "ab"]
        for guest in guests:
            guest.ask()
        gate.set()
        assert all(guest.is_done.wait(LIMIT_S) for guest in guests)
    assert log.count("a") == log.count("b") == 20
    ahead = [log[:end].count("a") - log[:end].count("b") for end in range(1, 40)]
    assert max(map(abs, ahead)) <= 2, "whose audio runs out first goes first"
    conversations = {call[3] for call in engine.calls if call[0] == "open" and call[1] == 1}
    assert len(conversations) == 2


def test_a_conversation_that_does_not_fit_is_refused_with_the_reason() -> None:
    engine = ScriptedEngine()
    with running(engine) as host:
        first, second = Guest(host, []), Guest(host, [])
        with pytest.raises(HostFullError, match=r"All 2 conversations .*by --conversations"):
            host.open_slot(lambda result: None)
        first.ask()
        assert first.is_done.wait(LIMIT_S)
        first.slot.close()
        first.slot.close()
        first.ask()  # nothing happens
        assert eventually(lambda: host.conversations == 1)
        third = Guest(host, [])
        third.ask()
        assert third.is_done.wait(LIMIT_S)
        assert not second.results
        host.drain()
        with pytest.raises(HostFullError, match="shutting down"):
            host.open_slot(lambda result: None)
    assert engine.conversations == len(engine.ended), "no conversation is left in the engine"
    assert engine.is_closed


def test_an_engine_that_cannot_be_loaded_is_the_problem() -> None:
    def broken() -> ScriptedEngine:
        raise MossVoiceError("The bundle is damaged.", "Copy it again.")

    host = EngineHost(broken)
    host.close()
    host.run()
    assert host.loaded.is_set()
    assert not host.is_alive
    assert str(host.problem) == "The bundle is damaged. Copy it again."


def test_a_failure_concerns_one_conversation() -> None:
    engine = ScriptedEngine()
    with running(engine) as host:
        engine.script.fail_on = "push_text"
        first = Guest(host, [])
        first.ask()
        assert first.is_done.wait(LIMIT_S)
        assert any(isinstance(result, TurnFailed) for result in first.results)
        engine.script.fail_on = ""
        second = Guest(host, [])
        second.ask()
        assert second.is_done.wait(LIMIT_S)
        assert not any(isinstance(result, TurnFailed) for result in second.results)


@pytest.mark.parametrize(("gains", "wanted"), [(True, True), (True, False), (False, True)])
def test_steps_are_shared_where_that_is_faster_and_wanted(gains: bool, wanted: bool) -> None:
    engine = ScriptedEngine()
    engine.gains_from_batches = gains
    host = host_of(engine, is_batching=wanted)
    host.close()
    host.run()
    assert host.scheduler.is_batching is (gains and wanted)


def test_speech_that_has_waited_is_taken_at_once() -> None:
    gate = threading.Event()
    engine = ScriptedEngine(Script(chunks=1))
    with running(engine) as host:
        engine.script.gate = gate  # the thread waits for it in the first reply
        busy, speaker = Guest(host, []), Guest(host, [])
        before = engine.commits
        busy.ask()
        assert eventually(lambda: engine.commits > before)
        speaker.slot.submit(OpenTurn(1, SPEECH, CancelScope()))
        for _ in range(3):
            speaker.slot.submit(Hear(1, np.zeros(1_280, np.float32)))
        speaker.slot.submit(Commit(1, SPEECH, None, CancelScope()))
        gate.set()
        assert speaker.is_done.wait(LIMIT_S)
    assert [call[2] for call in engine.calls if call[0] == "push" and call[1] == 1] == [3 * 1_280]


def test_speech_waits_for_that_of_others_unless_the_turn_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 1_000_000  # just after a tick
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    changed, pending = threading.Condition(), PendingWork()
    slot = EngineSlot(changed, pending)
    run = SlotRun(slot, lambda result: None, pending, Scheduler(), ThreadOwner())
    assert run.begins_ns is None
    hear = Hear(1, np.ones(1_280, np.float32))
    slot.submit(hear)
    assert run.begins_ns == TICK_NS
    assert not run.is_waiting(now_ns)
    run.speak(True)
    assert run.take_job(now_ns) is None, "its reply goes on meanwhile"
    run.speak(False)
    now_ns = 250_000_000
    slot.submit(hear)
    taken = run.take_job(now_ns)
    assert isinstance(taken, Hear)
    assert taken.pcm.size == 2 * 1_280, "with what came until the tick"
    slot.submit(hear)
    assert not run.is_waiting(now_ns)
    slot.submit(Commit(1, SPEECH, None, CancelScope()))
    assert isinstance(run.take_job(now_ns), Hear), "the user has ended"


def test_only_the_first_block_of_speech_wakes_the_engine_thread() -> None:
    slot = EngineSlot(threading.Condition(), PendingWork())
    wakes: list[int] = []
    slot.wake = lambda: wakes.append(len(slot.jobs))
    for _ in range(3):
        slot.submit(Hear(1, np.zeros(1_280, np.float32)))
    slot.submit(Commit(1, SPEECH, None, CancelScope()))
    slot.close()
    assert wakes == [1, 4, 0]


def test_speech_that_nothing_follows_is_begun_at_a_tick_of_an_idle_thread() -> None:
    engine = ScriptedEngine(Script(chunks=1))
    with running(engine) as host:
        speaker = Guest(host, [])
        speaker.slot.submit(OpenTurn(1, SPEECH, CancelScope()))
        speaker.slot.submit(Hear(1, np.zeros(1_280, np.float32)))
        assert eventually(lambda: any(call[0] == "push" for call in engine.calls))


def test_memory_is_given_back_when_a_conversation_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    monkeypatch.setattr(heap, "give_back_free_memory", lambda *, with_cycles: given.append("back"))
    with running(ScriptedEngine(Script(chunks=2))) as host:
        guest = Guest(host, [])
        guest.ask()
        assert guest.is_done.wait(LIMIT_S)
        assert given == []
        guest.slot.close()
        assert eventually(lambda: given == ["back"])
        assert host.conversations == 0


def test_a_single_conversation_chooses_the_flow_steps() -> None:
    with running(ScriptedEngine(), 1) as host:
        guest = Guest(host, [])
        assert host.flow_steps == FlowSteps(10, 10)
        guest.slot.submit(UseFlowSteps(4))
        assert eventually(lambda: FlowStepsSet(FlowSteps(4, 10)) in guest.results)
        assert host.flow_steps == FlowSteps(4, 10)


def test_several_conversations_share_the_flow_steps() -> None:
    with running(ScriptedEngine(), 2) as host:
        assert host.flow_steps is None
