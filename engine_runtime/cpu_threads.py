"""Threads of torch on the CPU: their wait policy, and their number depending on the load of other programs.

In: the environment, and the idle time of the processors. Out: variables that OpenMP reads when torch is first
imported, and calls of `torch.set_num_threads`. While every processor is free, all threads share an operation;
while another program runs, each operation would wait for the thread that was not scheduled (a vocoder packet
of 200 ms with one thread took 1 to 3 s with two), so the number of threads is reduced until the processors
are free again. Settings of the user are kept. Sessions of onnxruntime have no threads of their own and are
not affected. `CpuThreads` belongs to the engine thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass

WAIT_POLICY, SPIN_COUNT = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"
SPINS = 3000
"""Spin count (about 50 us) of a libgomp thread before it sleeps. It spans the gap between two operations: a
wake-up for each of them costs a flow packet half its time. A higher count takes time from other programs
before `CpuThreads` detects them."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")

WINDOW_S = 0.5
"""Minimum interval of a load measurement: the system counts in steps of 10 ms."""
SLACK = 0.35
"""Share of one thread that other programs may take before the thread is given up."""


def set_wait_policy(environ: MutableMapping[str, str] = os.environ) -> None:
    """Limit the spinning of waiting threads, unless the user has set a policy. Call it before torch is
    imported, which reads the variables once."""
    if WAIT_POLICY not in environ and SPIN_COUNT not in environ:
        environ[WAIT_POLICY] = "passive"
        environ[SPIN_COUNT] = str(SPINS)


def describe_wait_policy(environ: MutableMapping[str, str] = os.environ) -> str:
    """The variables of the wait policy, in shell syntax."""
    found = [f"{name}={environ[name]}" for name in (WAIT_POLICY, SPIN_COUNT) if name in environ]
    return " ".join(found) or "the library's own"


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Counters in seconds at one moment: wall time, total idle time of the processors, CPU time of this
    process and of the calling thread."""

    at_s: float
    idle_s: float
    process_s: float
    thread_s: float
    processors: int


def read_cpu_time() -> CpuTime:
    """Counters of the processors that this process may use."""
    import psutil

    times = psutil.cpu_times(percpu=True)
    if hasattr(os, "sched_getaffinity"):
        allowed = os.sched_getaffinity(0)
        times = [entry for index, entry in enumerate(times) if index in allowed] or times
    idle_s = sum(entry.idle + getattr(entry, "iowait", 0.0) for entry in times)
    return CpuTime(time.monotonic(), idle_s, time.process_time(), time.thread_time(), len(times))


def other_load(before: CpuTime, after: CpuTime, threads: int | None = None) -> float:
    """Number of processors busy between two moments with other work than this process or, if their number is
    given, than the calling thread and the threads that share its operations."""
    wall_s = max(after.at_s - before.at_s, 1e-9)
    own_s = after.process_s - before.process_s
    if threads is not None:
        own_s = min(own_s, threads * (after.thread_s - before.thread_s))
    taken_s = wall_s * after.processors - (after.idle_s - before.idle_s) - own_s
    return min(max(taken_s / wall_s, 0.0), float(after.processors))


class CpuThreads:
    """Controls the number of torch's threads.

    `most` is the number on an idle machine, `apply` sets it. Without `read` the number is fixed. `clock`
    returns the seconds of `CpuTime.at_s`.
    """

    def __init__(
        self,
        most: int,
        apply: Callable[[int], None],
        read: Callable[[], CpuTime] | None = read_cpu_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most = self.present = most
        self._apply, self._clock, self._read = apply, clock, read if most > 1 else None
        self._last = self._read() if self._read else None

    @property
    def is_adaptive(self) -> bool:
        """Whether the number follows the load."""
        return self._last is not None

    def adapt(self) -> None:
        """Set the number of threads according to the load since the last call, including other threads of
        this process. Cheap: call it before every stage, in the thread that runs it."""
        if self._last is None or self._read is None or self._clock() - self._last.at_s < WINDOW_S:
            return
        now = self._read()
        others = other_load(self._last, now, self.present)
        self._last = now
        self._set(max(1, min(self.most, int(self.most * (1.0 - others / now.processors) + SLACK))))

    def restore(self) -> None:
        """Restore the number for an idle machine."""
        self._set(self.most)

    def _set(self, count: int) -> None:
        if count != self.present:
            self._apply(count)
            self.present = count


def torch_threads(*, on_cpu: bool, environ: MutableMapping[str, str] = os.environ) -> CpuThreads:
    """The threads of torch in this process; fixed if the user has set their number, or if the networks do not
    run on the CPU."""
    import torch

    is_chosen = any(name in environ for name in THREAD_VARIABLES)
    read = read_cpu_time if on_cpu and not is_chosen else None
    return CpuThreads(torch.get_num_threads(), torch.set_num_threads, read)
