"""Simulated users: their turns on a virtual clock, and the same replies in a conversation alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine_runtime.bench import bench_user
from engine_runtime.bench.bench_user import BenchUser, ProcessorClock, UserReply, WallClock
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.errors import ExecutorError
from engine_runtime.scheduler.scheduler import Scheduler
from engine_runtime.types import ReplyAudio
from tests.tools.turns import check, speech


@pytest.fixture(scope="module")
def engine(random_bundle: Path) -> Engine:
    return Engine.load(Bundle.open(random_bundle))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_user, "TURN_S", (0.6, 0.9))


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

    def failing(*words: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 20:
            raise ExecutorError("logits: values are not finite")
        return step(*words, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(engine.stages.lm, "step", failing)
    user = BenchUser(engine, speech(1.0), 1, 1, clock)
    talk(user, clock, 3)
    user.close()
    assert [bool(reply.error) for reply in user.replies].count(True) == 1
    assert any("not finite" in reply.error for reply in user.replies)
