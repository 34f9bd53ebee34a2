"""The table of simultaneous conversations: what is counted, and what the target asks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine_runtime.bench import bench_user, simultaneous
from engine_runtime.bench.bench_user import ProcessorClock, UserReply
from engine_runtime.bench.ceilings import Ceilings
from engine_runtime.bench.replies import BenchError
from engine_runtime.bench.simultaneous import SimultaneousRun, hold_conversations, measure_simultaneous
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.errors import FlowCacheError
from engine_runtime.scheduler.stage_times import BatchTime
from tests.tools.turns import check, speech

CEILINGS = Ceilings(2e10, 1e11, 1, 1, "float32")
HEARD = UserReply(1.0, 3, (1, 2, 3), audio_s=0.24, ttfa_ms=200.0, rtf=0.5)


@pytest.fixture(scope="module")
def engine(random_bundle: Path) -> Engine:
    return Engine.load(Bundle.open(random_bundle))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_user, "TURN_S", (0.6, 0.9))


def run_of(*replies: UserReply) -> SimultaneousRun:
    calls = {("step", 1): BatchTime(10, 100), ("step", 2): BatchTime(5, 200), ("flow", 1): BatchTime(1, 50)}
    return SimultaneousRun(2, list(replies), calls, 1_000, 400, 2, 1)  # type: ignore[arg-type]


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
            raise FlowCacheError("The flow runs 4 replies at once. Wait until one of them has ended.")
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
