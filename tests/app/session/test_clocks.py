"""Real and virtual time, and the work for which the latter waits."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from app.session import clocks
from app.session.clocks import CpuTimeClock, PendingWork, RealClock, VirtualClock, thread_times_s


def event(is_set: bool) -> threading.Event:
    made = threading.Event()
    if is_set:
        made.set()
    return made


def test_real_time_passes_by_itself() -> None:
    clock = RealClock()
    start_ns = clock.now_ns()
    for _ in range(4):
        clock.tick(event(True), is_active=True)
    assert clock.now_ns() - start_ns >= 20_000_000


def test_virtual_time_jumps_while_the_engine_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "sleep")
    clock = VirtualClock()
    for _ in range(1_000):
        clock.tick(event(True), is_active=True)
    assert clock.now_ns() == 10_000_000_000


@pytest.mark.slow
def test_virtual_time_is_real_time_while_the_engine_works() -> None:
    clock = VirtualClock()
    start_s = time.perf_counter()
    for _ in range(20):
        clock.tick(event(False), is_active=True)
    assert clock.now_ns() == 200_000_000
    assert time.perf_counter() - start_s >= 0.19


def test_a_step_ends_early_when_the_engine_is_done() -> None:
    class DoneWhileWaiting(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            assert 0 <= timeout <= 0.010
            self.set()
            return True

    clock, idle = VirtualClock(), DoneWhileWaiting()
    clock.tick(idle, is_active=False)
    assert clock.now_ns() == 10_000_000
    assert idle.is_set()


def test_by_processor_time_a_step_lasts_as_long_as_the_other_threads_compute_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clocks, "LONGEST_STEP_S", 60.0)  # however long others keep the worker from a core
    clock, idle = CpuTimeClock(), threading.Event()

    def work() -> None:
        while clock.now_ns() < 50_000_000:
            pass
        idle.set()

    before_s = time.process_time() - time.thread_time()
    worker = threading.Thread(target=work)
    worker.start()
    while not idle.is_set():
        clock.tick(idle, is_active=True)
    worker.join()
    assert clock.now_ns() / 1e9 <= time.process_time() - time.thread_time() - before_s + 0.02


def test_threads_that_work_at_once_let_time_pass_once() -> None:
    seen = [{"a": 0.0}, {"a": 0.006, "b": 0.004}, {"a": 0.012, "b": 0.011}, {"a": 0.0191, "b": 0.012}]
    times = iter(seen)
    clock = CpuTimeClock(lambda: next(times))
    clock.tick(event(False), is_active=True)
    assert clock.now_ns() == 10_000_000, "6 and 7 ms"
    clock.tick(event(False), is_active=True)
    assert clock.now_ns() == 20_000_000, "the 3 ms left, and 7.1"
    assert not list(times)


def test_without_times_of_threads_the_sum_of_all_others_counts(tmp_path: Path) -> None:
    (tmp_path / str(threading.get_native_id())).mkdir()  # a kernel without schedstat
    for folder in (tmp_path, tmp_path / "missing"):
        ((name, others_s),) = thread_times_s(folder).items()
        assert name == "others"
        assert others_s == pytest.approx(time.process_time() - time.thread_time(), abs=0.05)


def test_by_processor_time_work_that_only_waits_does_not_stop_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clocks, "LONGEST_STEP_S", 0.01)
    clock = CpuTimeClock()
    clock.tick(event(False), is_active=True)
    assert clock.now_ns() == 10_000_000


def test_virtual_time_does_not_advance_when_nothing_happens() -> None:
    clock = VirtualClock()
    for _ in range(3):
        clock.tick(event(True), is_active=False)
    assert clock.now_ns() == 0


@pytest.mark.parametrize("kind", [RealClock, VirtualClock])
def test_time_never_goes_back(kind: type[RealClock | VirtualClock]) -> None:
    clock = kind()
    times = []
    for active in (True, False, True):
        clock.tick(event(True), is_active=active)
        times.append(clock.now_ns())
    assert times == sorted(times)


def test_idle_means_that_nothing_is_left() -> None:
    pending = PendingWork()
    assert pending.idle.is_set()
    pending.begin()
    pending.begin()
    pending.end()
    assert not pending.idle.is_set()
    pending.end()
    assert pending.idle.is_set()
