"""One engine for several conversations: admission, taking turns, errors, and what is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from app import heap
from app.server import engine_pool
from app.server.engine_pool import EnginePool, PoolFullError, Seat
from app.session.engine_jobs import (
    Ask,
    Commit,
    FlowSteps,
    FlowStepsSet,
    Hear,
    OpenTurn,
    ReplyResult,
    Result,
    TurnFailed,
    UseFlowSteps,
)
from engine_runtime.errors import MossVoiceError
from engine_runtime.scheduler.scheduler import TICK_NS, Scheduler
from engine_runtime.types import CancelScope, Modality, ReplyAudio, ReplyDone
from tests.doubles.scripted_engine import Script, ScriptedEngine

SPEECH = Modality.SPEECH
LIMIT_S = 30.0


@contextmanager
def running(engine: ScriptedEngine, most: int | None = 2) -> Iterator[EnginePool]:
    pool = EnginePool(lambda: engine, most)  # type: ignore[arg-type, return-value]
    thread = threading.Thread(target=pool.run, daemon=True)
    thread.start()
    assert pool.loaded.wait(LIMIT_S)
    try:
        yield pool
    finally:
        pool.close()
        thread.join(LIMIT_S)
        assert not thread.is_alive()


class Guest:
    """A conversation: what it got, and whether its reply is complete."""

    def __init__(self, pool: EnginePool, log: list[str], name: str = "") -> None:
        self.results: list[Result] = []
        self.is_done = threading.Event()
        self._log, self._name = log, name
        self.seat = pool.admit(self._take)

    def ask(self) -> None:
        self.seat.submit(OpenTurn(1, SPEECH, CancelScope()))
        self.seat.submit(Ask(1, "count"))
        self.seat.submit(Commit(1, SPEECH, None, CancelScope()))

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
    with running(engine) as pool:
        engine.script.gate = gate  # the first reply waits until both are asked for
        log: list[str] = []
        guests = [Guest(pool, log, name) for name in "ab"]
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
    with running(engine) as pool:
        first, second = Guest(pool, []), Guest(pool, [])
        with pytest.raises(PoolFullError, match=r"All 2 conversations .*by --conversations"):
            pool.admit(lambda result: None)
        first.ask()
        assert first.is_done.wait(LIMIT_S)
        first.seat.close()
        first.seat.close()
        first.ask()  # nothing happens
        assert eventually(lambda: pool.conversations == 1)
        third = Guest(pool, [])
        third.ask()
        assert third.is_done.wait(LIMIT_S)
        assert not second.results
        pool.drain()
        with pytest.raises(PoolFullError, match="shutting down"):
            pool.admit(lambda result: None)
    assert engine.conversations == len(engine.ended), "no conversation is left in the engine"
    assert engine.is_closed


@pytest.mark.slow
def test_memory_and_speed_set_the_number_of_conversations() -> None:
    engine = ScriptedEngine(Script(chunks=1, chunk_s=30.0))
    with running(engine, None) as pool:
        assert pool.capacity == 8, "by the KV cache: the engine is fast"
        assert pool.facts is not None
        assert pool.facts.rtf < 0.1
    slow = ScriptedEngine(Script(chunks=1, chunk_s=0.001, step_s=0.01))
    with running(slow, None) as pool:
        assert pool.capacity == 1, "however slow it is, one conversation is served"
    with running(ScriptedEngine(), 9) as pool:
        assert pool.problem is not None
        assert "KV cache of scripted holds 8 conversations, fewer than 9" in str(pool.problem)
        assert "--context-rows" in str(pool.problem)


@pytest.mark.slow
def test_what_has_least_room_sets_the_number_of_conversations(caplog: pytest.LogCaptureFixture) -> None:
    engine = ScriptedEngine(Script(chunks=1, chunk_s=30.0))
    engine.conversation_limits["speech encoder"] = 5
    with running(engine, None) as pool:
        assert pool.capacity == 5
        for _ in range(5):
            pool.admit(lambda result: None)
        with pytest.raises(PoolFullError, match="by its speech encoder"):
            pool.admit(lambda result: None)
    engine.speaking_limit = 2
    with running(engine, None) as pool:
        assert pool.capacity == 4, "users listen half of the time"
    with running(engine, 4):
        assert not caplog.messages
    with running(engine, 5) as pool:
        assert pool.capacity == 5, "as was asked for"
    assert (
        "--conversations 5: without it 4 would be admitted at once (limited by its flow's caches)"
        in caplog.text
    )
    engine = ScriptedEngine()
    engine.conversation_limits["speech encoder"] = 5
    with running(engine, 6) as pool:
        assert "The speech encoder of scripted holds 5 conversations, fewer than 6" in str(pool.problem)
        assert "--context-rows" not in str(pool.problem)


def test_an_engine_that_cannot_be_loaded_is_the_problem() -> None:
    def broken() -> ScriptedEngine:
        raise MossVoiceError("The bundle is damaged. Copy it again.")

    pool = EnginePool(broken)  # type: ignore[arg-type]
    pool.run()
    assert pool.loaded.is_set()
    assert not pool.is_alive
    assert str(pool.problem) == "The bundle is damaged. Copy it again."


def test_a_failure_concerns_one_conversation() -> None:
    engine = ScriptedEngine()
    with running(engine) as pool:
        engine.script.fail_on = "push_text"
        first = Guest(pool, [])
        first.ask()
        assert first.is_done.wait(LIMIT_S)
        assert any(isinstance(result, TurnFailed) for result in first.results)
        engine.script.fail_on = ""
        second = Guest(pool, [])
        second.ask()
        assert second.is_done.wait(LIMIT_S)
        assert not any(isinstance(result, TurnFailed) for result in second.results)


@pytest.mark.parametrize(("gains", "invariant"), [(True, False), (True, True), (False, False)])
def test_steps_are_shared_where_that_is_faster_and_not_refused(gains: bool, invariant: bool) -> None:
    engine = ScriptedEngine()
    engine.gains_from_batches = gains
    pool = EnginePool(lambda: engine, 1, batch_invariant=invariant)  # type: ignore[arg-type, return-value]
    pool.close()
    pool.run()
    assert pool.scheduler.is_batching is (gains and not invariant)


def test_speech_that_has_waited_is_taken_at_once() -> None:
    gate = threading.Event()
    engine = ScriptedEngine(Script(chunks=1))
    with running(engine) as pool:
        engine.script.gate = gate  # the thread waits for it in the first reply
        busy, speaker = Guest(pool, []), Guest(pool, [])
        before = engine.commits
        busy.ask()
        assert eventually(lambda: engine.commits > before)
        speaker.seat.submit(OpenTurn(1, SPEECH, CancelScope()))
        for _ in range(3):
            speaker.seat.submit(Hear(1, np.zeros(1_280, np.float32)))
        speaker.seat.submit(Commit(1, SPEECH, None, CancelScope()))
        gate.set()
        assert speaker.is_done.wait(LIMIT_S)
    assert [call[2] for call in engine.calls if call[0] == "push" and call[1] == 1] == [3 * 1_280]


def test_speech_waits_for_that_of_others_unless_the_turn_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 1_000_000  # just after a tick
    monkeypatch.setattr(engine_pool.time, "monotonic_ns", lambda: now_ns)
    pool, scheduler = EnginePool(ScriptedEngine), Scheduler()  # type: ignore[arg-type]
    seat = Seat(pool, lambda result: None)
    assert seat.begins_ns(scheduler) is None
    hear = Hear(1, np.ones(1_280, np.float32))
    seat.submit(hear)
    assert seat.begins_ns(scheduler) == TICK_NS
    assert not seat.is_waiting(scheduler)
    seat.is_speaking = True
    assert seat.take_job(scheduler) is None, "its reply goes on meanwhile"
    seat.is_speaking = False
    now_ns = 250_000_000
    seat.submit(hear)
    taken = seat.take_job(scheduler)
    assert isinstance(taken, Hear)
    assert taken.pcm.size == 2 * 1_280, "with what came until the tick"
    seat.submit(hear)
    assert not seat.is_waiting(scheduler)
    seat.submit(Commit(1, SPEECH, None, CancelScope()))
    assert isinstance(seat.take_job(scheduler), Hear), "the user has ended"


def test_speech_that_nothing_follows_is_begun_at_a_tick_of_an_idle_thread() -> None:
    engine = ScriptedEngine(Script(chunks=1))
    with running(engine) as pool:
        speaker = Guest(pool, [])
        speaker.seat.submit(OpenTurn(1, SPEECH, CancelScope()))
        speaker.seat.submit(Hear(1, np.zeros(1_280, np.float32)))
        assert eventually(lambda: any(call[0] == "push" for call in engine.calls))


def test_memory_is_given_back_when_a_conversation_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    monkeypatch.setattr(heap, "give_back_free_memory", lambda *, with_cycles: given.append("back"))
    with running(ScriptedEngine(Script(chunks=2))) as pool:
        guest = Guest(pool, [])
        guest.ask()
        assert guest.is_done.wait(LIMIT_S)
        assert given == []
        guest.seat.close()
        assert eventually(lambda: given == ["back"])
        assert pool.conversations == 0


def test_a_single_conversation_chooses_the_flow_steps() -> None:
    with running(ScriptedEngine(), 1) as pool:
        guest = Guest(pool, [])
        assert guest.seat.flow_steps == FlowSteps(10, 10)
        guest.seat.submit(UseFlowSteps(4))
        assert eventually(lambda: FlowStepsSet(FlowSteps(4, 10)) in guest.results)
        assert guest.seat.flow_steps == FlowSteps(4, 10)


def test_several_conversations_share_the_flow_steps() -> None:
    with running(ScriptedEngine(), 2) as pool:
        assert pool.flow_steps is None
