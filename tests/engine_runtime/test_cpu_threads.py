"""The number of torch threads follows the load; a number set by the user is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.cpu_threads import (
    SPIN_COUNT,
    SPINS,
    WAIT_POLICY,
    WINDOW_S,
    CpuThreads,
    CpuTime,
    describe_wait_policy,
    other_load,
    read_cpu_time,
    set_wait_policy,
    torch_threads,
)
from engine_runtime.engine import Engine
from engine_runtime.loading import Stages
from engine_runtime.work import run_alone


class Machine:
    """Processors on which this process and others work for a while at a time."""

    def __init__(self, processors: int = 2) -> None:
        self.time = CpuTime(100.0, 50.0, 10.0, 5.0, processors)
        self.threads: list[int] = []
        self.looks = 0

    def read(self) -> CpuTime:
        self.looks += 1
        return self.time

    def work(self, seconds: float, own: float, others: float, window: float = 0.0, threads: int = 1) -> None:
        """Processors kept busy: by `threads` of the engine together, by others, by the window beside the
        engine."""
        now = self.time
        self.time = CpuTime(
            now.at_s + seconds,
            now.idle_s + seconds * (now.processors - own - others - window),
            now.process_s + seconds * (own + window),
            now.thread_s + seconds * own / threads,
            now.processors,
        )

    def make(self, most: int) -> CpuThreads:
        return CpuThreads(most, self.threads.append, self.read, lambda: self.time.at_s)


def test_threads_are_given_up_beside_others_and_come_back() -> None:
    machine = Machine()
    threads = machine.make(2)
    for own, others, present in (
        (1.9, 0.1, 2),  # alone
        (1.0, 1.0, 1),  # two others on two processors leave us one of them
        (1.0, 1.0, 1),
        (0.7, 1.3, 1),
        (1.0, 0.0, 2),  # they are gone
        (1.4, 0.6, 1),  # one other
        (0.2, 0.2, 2),  # a music player
    ):
        machine.work(WINDOW_S, own, others, threads=threads.present)
        threads.adapt()
        assert threads.present == present, (own, others)
    assert machine.threads == [1, 2, 1, 2]


def test_a_window_that_draws_much_counts_as_other_work() -> None:
    machine = Machine()
    threads = machine.make(2)
    for own, window, present in ((1.9, 0.1, 2), (1.5, 0.5, 1), (1.0, 0.5, 1), (1.0, 0.1, 2)):
        machine.work(WINDOW_S, own, 0.0, window, threads.present)
        threads.adapt()
        assert threads.present == present, (own, window)


def test_an_engine_whose_threads_sleep_takes_no_more_than_the_process() -> None:
    machine = Machine()
    threads = machine.make(2)
    machine.work(WINDOW_S, 1.0, 0.9, threads=1)  # twice the engine thread would be all there is
    threads.adapt()
    assert threads.present == 1


def test_on_many_processors_as_many_threads_are_given_up_as_others_take() -> None:
    machine = Machine(16)
    threads = machine.make(8)  # of two processors a core
    for others, present in ((0.0, 8), (0.5, 8), (1.0, 7), (8.0, 4), (15.9, 1)):
        machine.work(WINDOW_S, 0.1, others, threads=threads.present)
        threads.adapt()
        assert threads.present == present, others


def test_the_load_is_looked_at_now_and_then() -> None:
    machine = Machine()
    threads = machine.make(2)
    for _ in range(10):
        machine.work(WINDOW_S / 4.99, 0.5, 1.5)
        threads.adapt()
    assert machine.looks == 3
    assert machine.threads == [1]


def test_one_thread_needs_no_looking() -> None:
    machine = Machine(1)
    threads = machine.make(1)
    machine.work(WINDOW_S, 0.1, 0.9)
    threads.adapt()
    assert not threads.is_adaptive
    assert machine.looks == 0


def test_restore_brings_all_threads_back() -> None:
    machine = Machine()
    threads = machine.make(2)
    machine.work(WINDOW_S, 0.5, 1.5)
    threads.adapt()
    threads.restore()
    threads.restore()
    assert machine.threads == [1, 2]


@pytest.mark.parametrize(
    ("own", "others", "expected"), [(0.5, 1.0, 1.0), (2.5, 0.0, 0.0), (0.0, 2.5, 2.0), (0.0, 0.0, 0.0)]
)
def test_the_load_of_others_stays_within_the_machine(own: float, others: float, expected: float) -> None:
    machine = Machine()
    before = machine.read()
    machine.work(1.0, own, others)
    assert other_load(before, machine.read()) == pytest.approx(expected)


def test_this_machine_is_read() -> None:
    first = read_cpu_time()
    sum(range(300_000))
    second = read_cpu_time()
    assert second.process_s > first.process_s
    assert second.thread_s > first.thread_s
    assert second.at_s > first.at_s
    assert second.idle_s >= first.idle_s
    assert 1 <= second.processors <= (os.cpu_count() or 1)


@pytest.mark.parametrize("variable", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_the_number_that_the_user_chose_stays(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert torch_threads(on_cpu=True, environ={}).is_adaptive
    assert not torch_threads(on_cpu=True, environ={variable: "4"}).is_adaptive
    assert not torch_threads(on_cpu=False, environ={}).is_adaptive
    assert torch_threads(on_cpu=False, environ={}).most == 4


def test_waiting_is_short_unless_the_user_says_otherwise() -> None:
    environ: dict[str, str] = {}
    assert describe_wait_policy(environ) == "the library's own"
    set_wait_policy(environ)
    assert environ == {WAIT_POLICY: "passive", SPIN_COUNT: str(SPINS)}
    assert describe_wait_policy(environ) == f"OMP_WAIT_POLICY=passive GOMP_SPINCOUNT={SPINS}"
    for chosen in ({WAIT_POLICY: "active"}, {SPIN_COUNT: "5"}):
        environ = dict(chosen)
        set_wait_policy(environ)
        assert environ == chosen


def test_the_policy_is_set_before_torch_is_there() -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OMP", "GOMP"))}
    code = "import engine_runtime, os, sys; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["passive", "False"]


def test_a_turn_adapts_and_a_closed_engine_leaves_all_threads(
    random_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine()
    monkeypatch.setattr("engine_runtime.loading.torch_threads", lambda *, on_cpu: machine.make(2))
    engine = Engine.load(Bundle.open(random_bundle))
    stages: Stages = engine.stages
    machine.work(WINDOW_S, 0.5, 1.5)
    turn = run_alone(engine.open_turn(engine.new_conversation(), 1))
    assert stages.cpu_threads.present == 1
    machine.work(WINDOW_S, 0.5, 0.0)
    run_alone(turn.push_text("hello"))
    assert stages.cpu_threads.present == 2
    machine.work(WINDOW_S, 0.5, 1.5)
    turn.cancel()
    run_alone(engine.open_turn(engine.new_conversation(), 2))
    engine.close()
    assert machine.threads == [1, 2, 1, 2]
