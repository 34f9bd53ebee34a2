"""The table of simultaneous conversations: what is counted, and what the target asks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine_runtime.bench import simultaneous
from engine_runtime.bench.ceilings import Ceilings
from engine_runtime.bench.measuring import BenchError
from engine_runtime.bench.simultaneous import (
    BenchUser,
    ProcessorClock,
    SimultaneousRun,
    UserReply,
    WallClock,
    hold_conversations,
    measure_simultaneous,
)
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.errors import ExecutorError, FlowCacheError
from engine_runtime.lm.paged_lm import StepRequest
from engine_runtime.lm.step import StepOutput
from engine_runtime.scheduler import BatchTime, Scheduler
from engine_runtime.types import ReplyAudio
from engine_runtime.work import Stage
from tests.tools.turns import check, speech

CEILINGS = Ceilings(2e10, 1e11, 1, 1, "float32")
HEARD = UserReply(1.0, 3, (1, 2, 3), audio_s=0.24, ttfa_ms=200.0, rtf=0.5)


@pytest.fixture(scope="module")
def engine(random_bundle: Path) -> Engine:
    return Engine.load(Bundle.open(random_bundle))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simultaneous, "TURN_S", (0.6, 0.9))


def run_of(*replies: UserReply) -> SimultaneousRun:
    calls: dict[tuple[Stage, int], BatchTime] = {
        ("step", 1): BatchTime(10, 100),
        ("step", 2): BatchTime(5, 200),
        ("flow", 1): BatchTime(1, 50),
    }
    return SimultaneousRun(2, list(replies), calls, 1_000, 400, 2, 1)


def test_a_row_has_the_shares_of_the_time() -> None:
    row = run_of(HEARD, replace(HEARD, gaps_ms=[3.0, 8.0]), replace(HEARD, error="ExecutorError")).row()
    assert (row["replies"], row["failed"], row["gaps"], row["gap_ms"]) == (3, 1, 2, 8.0)
    assert (row["step"], row["flow"], row["vocoder"], row["busy"]) == (0.3, 0.05, 0.0, 0.4)
    assert row["host"] == pytest.approx(0.05)
    assert set(row) == set(simultaneous.COLUMNS)


def test_users_are_held_without_a_gap_an_error_or_a_late_first_packet() -> None:
    assert run_of(HEARD, HEARD).holds
    assert not run_of(HEARD, replace(HEARD, gaps_ms=[1.0])).holds
    assert not run_of(HEARD, replace(HEARD, error="x")).holds
    assert not run_of(HEARD, replace(HEARD, ttfa_ms=400.0)).holds
    assert not run_of().holds


@pytest.mark.slow
def test_three_users_at_once_hear_what_each_would_alone(engine: Engine) -> None:
    run = hold_conversations(engine, speech(1.0), 3, 3.0, ProcessorClock())
    assert len(run.replies) >= 3
    assert not any(reply.error for reply in run.replies)
    assert run.compared == run.equal >= 3
    assert 0 < run.busy_ns < run.elapsed_ns
    check(engine)


@pytest.mark.slow
def test_the_tables_define_their_columns(engine: Engine) -> None:
    done: list[float] = []
    users, calls = measure_simultaneous(
        engine, speech(1.0), [1, 2], 2.0, ProcessorClock(), CEILINGS, done.append
    )
    assert done == [1, 2]
    assert [row["users"] for row in users.rows] == [1, 2]
    assert set(calls.rows[0]) == set(calls.columns)
    assert {row["stage"] for row in calls.rows} >= {"encode", "prefill", "step", "flow", "vocoder"}
    assert all((row["floor_ms"] is not None) == (row["stage"] == "step") for row in calls.rows)
    assert "without a gap" in users.note


def test_a_number_of_users_that_fails_loses_no_smaller_one(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hold(engine: Engine, recording: object, users: int, *_: object, **__: object) -> SimultaneousRun:
        if users > 2:
            raise FlowCacheError("The flow runs 4 replies at once.", "Wait until one of them has ended.")
        return run_of(HEARD)

    monkeypatch.setattr(simultaneous, "hold_conversations", hold)
    users, calls = measure_simultaneous(engine, speech(1.0), [2, 8, 16], 1.0, ProcessorClock(), CEILINGS)
    assert [row["users"] for row in users.rows] == [2]
    assert users.note.startswith("not measured: 8, 16 users (The flow runs 4 replies at once.")
    assert calls.rows
    with pytest.raises(FlowCacheError):
        measure_simultaneous(engine, speech(1.0), [8], 1.0, ProcessorClock(), CEILINGS)


def test_no_reply_is_an_error(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = run_of(replace(HEARD, codes=(), error="OutOfBlocksError: the pool is full"))
    monkeypatch.setattr(simultaneous, "hold_conversations", lambda *words, **options: nobody)
    with pytest.raises(BenchError, match="the pool is full"):
        measure_simultaneous(engine, speech(1.0), [1], 1.0, ProcessorClock(), CEILINGS)


def talk(user: BenchUser, clock: ProcessorClock, turns: int) -> None:
    scheduler = Scheduler(clock_ns=clock.now_ns)
    while not user.is_over:
        user.is_ending = len(user.replies) >= turns
        user.poll(scheduler)
        if scheduler.is_idle:
            clock.wait(max(user.next_ns(scheduler) - clock.now_ns(), 0))
        scheduler.run_once()


def test_a_clock_of_processor_time_does_not_wait() -> None:
    clock = ProcessorClock()
    before = clock.now_ns()
    clock.wait(3_600_000_000_000)
    assert 3_600 <= (clock.now_ns() - before) / 1e9 < 3_601
    assert WallClock().now_ns() > 0


@pytest.mark.slow
def test_turns_follow_one_another_and_are_the_same_alone(engine: Engine) -> None:
    clock = ProcessorClock()
    user = BenchUser(engine, speech(1.0), 3, 7, clock)
    start_ns = clock.now_ns()
    talk(user, clock, 2)
    user.close()
    assert len(user.replies) == 2
    for reply in user.replies:
        assert not reply.error
        assert len(reply.codes) == reply.wanted_codes > 5
        assert reply.audio_s == pytest.approx(0.08 * reply.wanted_codes)
        assert 0 < reply.ttfa_ms < 1e3 * reply.rtf * reply.audio_s
        assert 0.6 <= reply.question_s <= 0.9
    spoken_s = (
        sum(reply.question_s + reply.audio_s for reply in user.replies[:1]) + user.replies[1].question_s
    )
    assert (clock.now_ns() - start_ns) / 1e9 > spoken_s, "in real time"
    assert user.repeat_alone(2) == [reply.codes for reply in user.replies]
    check(engine)


def test_audio_that_comes_after_all_was_played_is_a_gap(engine: Engine) -> None:
    clock = ProcessorClock()
    user, reply = BenchUser(engine, speech(1.0), 0, 0, clock), UserReply(1.0, 10)
    user._played_until_ns = committed_ns = clock.now_ns()
    half_a_second = ReplyAudio(1, np.zeros(12_000, np.float32), 24_000, 0)
    for wait_s in (0.2, 0.4, 0.9):
        clock.wait(round(wait_s * 1e9))
        user._hear(reply, half_a_second, committed_ns)
    user.close()
    assert reply.ttfa_ms == pytest.approx(200, abs=50)
    assert reply.gaps_ms == [pytest.approx(300, abs=50)]
    assert (reply.audio_s, reply.rtf) == (1.5, pytest.approx(1.0, abs=0.05))


@pytest.mark.slow
def test_an_error_is_noted_and_the_user_goes_on(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = ProcessorClock(), 0
    step = engine.stages.lm.step

    def failing(requests: list[StepRequest], *, exclusive_gpu: bool = False) -> list[StepOutput]:
        nonlocal calls
        calls += 1
        if calls == 20:
            raise ExecutorError("logits: values are not finite")
        return step(requests, exclusive_gpu=exclusive_gpu)

    monkeypatch.setattr(engine.stages.lm, "step", failing)
    user = BenchUser(engine, speech(1.0), 1, 1, clock)
    talk(user, clock, 3)
    user.close()
    assert [bool(reply.error) for reply in user.replies].count(True) == 1
    assert any("not finite" in reply.error for reply in user.replies)
