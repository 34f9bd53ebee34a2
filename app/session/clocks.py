"""The clock of a session: real time, or a virtual one that runs as fast as the work allows.

In: a tick at the end of every round of the dialog thread; the tasks that the other threads begin and end.
Out: the time; how long the program stood still, because the computer slept or the process was stopped. On the
virtual clock sound advances without waiting, but while the engine or the end-of-turn detector works it never
runs faster than real time; so anything that is too late in real time is late here as well, and under-runs and
latencies are those of a real-time conversation.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

_ROUND_S = 0.005
_TASKS = Path("/proc/self/task")
_STEP_S = 0.010
_LOOK_S = 0.002
LONGEST_STEP_S = 2.0
"""Time limit for work that takes no processor time, for example waiting for a file."""
LEAST_STANDSTILL_NS = 5_000_000_000
"""The rings hold 2 s of sound, so some of it is lost after this time in any case."""
_STANDSTILL_WITH_DEVICES_NS = 30_000_000_000
"""Devices that are closed and opened take up to their time limits."""


class Clock(Protocol):
    """Time in nanoseconds, and how the dialog thread waits."""

    def now_ns(self) -> int:
        """The time; only differences mean something."""

    def wall_ns(self) -> int:
        """Like `now_ns`, but it keeps counting while the computer sleeps."""

    def tick(self, idle: threading.Event, *, is_active: bool) -> None:
        """Wait until the next round is due. `is_active`: sound is being fed or played."""


class RealClock:
    """Time as it passes."""

    def now_ns(self) -> int:
        """The monotonic clock that the timing bus uses."""
        return time.perf_counter_ns()

    def wall_ns(self) -> int:
        """The time since the computer was started; `now_ns` where the system does not provide it."""
        clock = getattr(time, "CLOCK_BOOTTIME", None)
        return time.perf_counter_ns() if clock is None else time.clock_gettime_ns(clock)

    def tick(self, idle: threading.Event, *, is_active: bool) -> None:
        """Sleep for half a device block."""
        time.sleep(_ROUND_S)


class VirtualClock:
    """Time that passes in steps of 10 ms: at once while the other threads are idle, else in real time.

    While nothing is active, time does not advance and the thread sleeps.
    """

    def __init__(self) -> None:
        self._now_ns = 0
        self._round_began_s = time.perf_counter()

    def now_ns(self) -> int:
        """Virtual time since the start."""
        return self._now_ns

    def wall_ns(self) -> int:
        """The same: nothing sleeps."""
        return self._now_ns

    def tick(self, idle: threading.Event, *, is_active: bool) -> None:
        """Advance by a step; while they work, not before the step has passed in real time."""
        if idle.is_set() and not is_active:
            time.sleep(_ROUND_S)
        else:
            self._await_step(idle)
            self._now_ns += round(_STEP_S * 1e9)
        self._round_began_s = time.perf_counter()

    def _await_step(self, idle: threading.Event) -> None:
        idle.wait(max(_STEP_S - (time.perf_counter() - self._round_began_s), 0.0))


class CpuTimeClock(VirtualClock):
    """A virtual clock that advances with the processor time of the other threads while they work: latencies
    are those of a machine with a core for each of them and no other programs. For an engine on one thread of
    the CPU."""

    def __init__(self, times_s: Callable[[], dict[str, float]] | None = None) -> None:
        """`times_s` gives the processor time of each of the other threads, in seconds."""
        super().__init__()
        self._times_s = times_s or thread_times_s
        self._seen_s = self._times_s()
        self._owed_s = 0.0
        """Processor time of the busiest threads for which no time has passed yet."""

    def _await_step(self, idle: threading.Event) -> None:
        give_up_s = time.perf_counter() + LONGEST_STEP_S
        while not idle.wait(_LOOK_S):
            self._owed_s += self._worked_s()
            if self._owed_s >= _STEP_S:
                self._owed_s -= _STEP_S
                return
            if time.perf_counter() > give_up_s:
                return
        self._worked_s()
        self._owed_s = 0.0

    def _worked_s(self) -> float:
        """Processor time of the thread that had most of it since the last call."""
        before_s, self._seen_s = self._seen_s, self._times_s()
        return max((now_s - before_s.get(name, 0.0) for name, now_s in self._seen_s.items()), default=0.0)


def thread_times_s(tasks: Path = _TASKS) -> dict[str, float]:
    """Processor time in seconds of all threads but the calling one, from Linux's folder of them; or their
    sum, where the system knows no more."""
    own, times_s = str(threading.get_native_id()), {}
    for task in tasks.iterdir() if tasks.is_dir() else ():
        with contextlib.suppress(OSError):  # the thread has ended, or the kernel has no such file
            times_s[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
    if own not in times_s:
        return {"others": time.process_time() - time.thread_time()}
    del times_s[own]
    return times_s


class PendingWork:
    """Counts the unfinished tasks of the other threads, for which a virtual clock waits. Any thread."""

    def __init__(self) -> None:
        self.idle = threading.Event()
        """Set while no work is waiting or being done."""
        self.idle.set()
        self._count = 0
        self._lock = threading.Lock()

    def begin(self) -> None:
        """A task was started."""
        with self._lock:
            if not self._count:
                self.idle.clear()
            self._count += 1

    def end(self) -> None:
        """A task is done, and its result is available."""
        with self._lock:
            self._count -= 1
            if self._count == 0:
                self.idle.set()


class Standstill:
    """Detects that the program stood still, from a call at two places of each round of the dialog thread.

    The wait between two rounds, and each part of a round, takes milliseconds where nothing is opened; so load
    does not explain a longer time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall_ns = clock.wall_ns()
        self._now_ns = clock.now_ns()
        self.began_ns = 0
        """When the latest standstill began, by the session's clock."""

    def check(self, *, with_devices: bool = False) -> float:
        """Seconds since the latest call if that was a standstill, else 0; `with_devices`: devices may have
        been opened since."""
        before_ns, self._wall_ns = self._wall_ns, self._clock.wall_ns()
        began_ns, self._now_ns = self._now_ns, self._clock.now_ns()
        away_ns = self._wall_ns - before_ns
        if away_ns < (_STANDSTILL_WITH_DEVICES_NS if with_devices else LEAST_STANDSTILL_NS):
            return 0.0
        self.began_ns = began_ns
        return away_ns / 1e9
