"""The place of one conversation in an engine: its jobs on their way to the engine thread.

In: jobs, from any thread, at an `EngineSlot`; what the composition root makes as the source of replies, an
engine of this process, or one elsewhere that holds the conversation itself. Out: the same jobs, in the engine
thread: for the `EngineHost` (engine_host.py), or, for a `RemoteEngine`, through a `SlotPort`. No torch.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from app.session.clocks import PendingWork
from app.session.engine_jobs import Commit, EngineLost, Hear, Job, Load, Loaded, LoadFailed, Result
from engine_runtime.errors import Problem
from engine_runtime.scheduler import TICK_NS
from engine_runtime.timing import TimingBus

if TYPE_CHECKING:  # torch is imported by the factory, in the engine thread
    from engine_runtime.engine import Engine

HEAR_DUE_NS = TICK_NS + 100_000_000
"""Speech is due this long after it was submitted: at the next tick, with some time for the work."""


class EngineSlot:
    """Takes the jobs of one conversation, from any thread. Created by `EngineHost.open_slot`."""

    def __init__(self, changed: threading.Condition, pending: PendingWork) -> None:
        """`changed` guards `jobs` and `is_closed`. `pending` counts a job until it is carried out."""
        self.jobs: deque[tuple[int, Job]] = deque()
        """With the time at which each is due."""
        self.is_closed = False
        self.wake: Callable[[], None] = changed.notify
        """Called with `changed` held when there is a job to begin, or the end. It must not block."""
        self._changed, self._pending = changed, pending

    def submit(self, job: Job) -> None:
        """Put a job in the queue; never blocks. A closed slot takes none."""
        with self._changed:
            if not self.is_closed:
                self._pending.begin()
                is_speech = isinstance(job, Hear)
                wait_ns = HEAR_DUE_NS if is_speech else 0
                # Speech is begun with the jobs before it, of which the other thread knows.
                is_known = is_speech and bool(self.jobs)
                self.jobs.append((time.monotonic_ns() + wait_ns, job))
                if not is_known:
                    self.wake()

    def close(self) -> None:
        """End the conversation after the step in progress; its KV blocks are freed. May be called twice."""
        with self._changed:
            self.is_closed = True
            self.drop_jobs()
            self.wake()

    # ---- engine thread ----

    def pop(self) -> Job:
        """The next job. The caller holds `changed` and ends its count."""
        return self.jobs.popleft()[1]

    def drop_jobs(self) -> None:
        """Drop waiting jobs, up to a `Load`. The caller holds `changed`."""
        while self.jobs and (self.is_closed or not self.is_changing_engines):
            self.pop()
            self._pending.end()

    @property
    def is_changing_engines(self) -> bool:
        """Whether the next job is to load another engine. The caller holds `changed`."""
        return bool(self.jobs) and isinstance(self.jobs[0][1], Load)


class SlotPort:
    """A slot whose conversation is held elsewhere: jobs, one at a time, and the way back. Engine thread."""

    def __init__(
        self,
        slot: EngineSlot,
        changed: threading.Condition,
        pending: PendingWork,
        give: Callable[[Result], None],
        on_engine: Callable[[TimingBus], None],
    ) -> None:
        """`pending` counts the loading, which is over with `ready` or `fail`."""
        self.give = give
        """Takes a result."""
        self.pending = pending
        """Counts each job until the taker ends it, and work that outlasts its job."""
        self.has_turns = False
        """Whether a reply was requested."""
        self._slot, self._changed, self._on_engine = slot, changed, on_engine
        self._is_loading = True

    def on_job(self, wake: Callable[[], None] | None) -> None:
        """Call `wake` in the submitting thread whenever there is a job, or the end; it must not block."""
        with self._changed:
            self._slot.wake = self._changed.notify if wake is None else wake

    def take(self) -> Job | None:
        """The next job, None if there is none now. End its count in `pending` once it is carried out."""
        with self._changed:
            if not self._slot.jobs or self._slot.is_changing_engines:
                return None
            job = self._slot.pop()
        self.has_turns = self.has_turns or isinstance(job, Commit)
        return job

    @property
    def is_over(self) -> bool:
        """Whether the conversation has to end here: it is closed, or another engine continues."""
        with self._changed:
            return self._slot.is_closed or self._slot.is_changing_engines

    def ready(self, loaded: Loaded, timing: TimingBus) -> None:
        """The conversation can begin. Durations are put on this bus from now on."""
        self._on_engine(timing)
        self.give(loaded)
        self._end_loading()

    def fail(self, problem: Problem) -> None:
        """There is no engine, or none any more."""
        self.give((LoadFailed if self._is_loading else EngineLost)(problem))
        self._end_loading()

    def _end_loading(self) -> None:
        if self._is_loading:
            self._is_loading = False
            self.pending.end()


@runtime_checkable
class RemoteEngine(Protocol):
    """Holds a conversation in an engine that is not in this process."""

    def converse(self, port: SlotPort, *, has_history: bool) -> None:
        """Carry out jobs until the port is over. Blocks; engine thread.

        `has_history`: another engine held a conversation before, of which this one knows nothing. Raises
        MossVoiceError where there is no engine, or none any more.
        """


EngineFactory = Callable[[], AbstractContextManager["Engine"]]
"""Loads an engine. Called once, in the engine thread; may raise a MossVoiceError. The context is left when
the host closes or loads another one: an `Engine` closes itself then, `nullcontext(engine)` leaves it to its
owner."""
EngineSource = Callable[[], "AbstractContextManager[Engine] | RemoteEngine"]
"""An `EngineFactory`, or what makes a remote engine."""
