"""One loaded engine shared by several conversations; admission to it.

In: jobs of each conversation. Out: results, given to the conversation in the engine thread. `run` is the body
of the engine thread, the only one that touches the engine; everything else may be called from any thread.

Each conversation runs one task at a time, a job or the next event of its reply, and the scheduler runs equal
work of several in one call (engine_runtime/scheduler). What is due first goes first: a job at once, speech
340 ms after it was submitted, the next event of a reply when the audio made so far has been played.

Admission: a conversation gets a `Seat`, or `PoolFullError` with the reason. Each seat has all KV blocks that
a conversation can need, and as many seats exist as can speak at once without a gap at the measured speed
(engine_load.py), and with room in the flow's caches if half of them speak. So an admitted conversation is
never slowed down or cut short because of another one.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from app.heap import FreedMemory
from app.server.engine_load import choose_admission
from app.session.engine_history import EngineHistory
from app.session.engine_jobs import Commit, FlowSteps, Hear, Job, ReplyResult, Result
from app.session.engine_source import EngineFactory
from app.session.engine_turns import EngineTurns
from engine_runtime.errors import MossVoiceError
from engine_runtime.scheduler.scheduler import TICK_NS, ScheduledTask, Scheduler
from engine_runtime.timing import TimingBus
from engine_runtime.types import ReplyAudio
from engine_runtime.work import Task

if TYPE_CHECKING:  # it imports torch
    from engine_runtime.engine import BlockStats, Engine

_HEAR_DUE_NS = TICK_NS + 100_000_000
_log = logging.getLogger(__name__)


class PoolFullError(MossVoiceError):
    """No conversation can be admitted now."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What conversations need to know of the loaded engine."""

    bundle: str
    input_sample_rate: int
    output_sample_rate: int
    samples_per_code: int
    rtf: float
    """Measured at the start: engine time of a spoken reply / its audio."""


class Seat:
    """The place of one conversation in the pool. Created by `EnginePool.admit`."""

    def __init__(self, pool: EnginePool, deliver: Callable[[Result], None]) -> None:
        self._pool = pool
        self._deliver = deliver
        self.jobs: deque[tuple[int, Job]] = deque()
        """With the time at which each is due. Guarded by the pool's condition."""
        self.is_speaking = False
        """Whether the reply has more to be made. Engine thread."""
        self.played_until_ns = 0
        """When the audio made so far has been played by a client that plays at once. Engine thread."""
        self.is_leaving = False
        self.running: ScheduledTask | None = None
        """The job or event in progress. Engine thread."""
        self._running_due_ns: int | None = None
        """When the job in progress is due; None for an event."""
        self._history: EngineHistory | None = None
        self._turns: EngineTurns | None = None

    def submit(self, job: Job) -> None:
        """Put a job in the queue; never blocks. A closed seat takes none."""
        self._pool.submit(self, job)

    def close(self) -> None:
        """End the conversation after the present step; its KV blocks are freed. May be called twice."""
        self._pool.leave(self)

    @property
    def flow_steps(self) -> FlowSteps | None:
        """As `EnginePool.flow_steps`."""
        return self._pool.flow_steps

    @property
    def timing(self) -> TimingBus | None:
        """The engine's bus, None before it is loaded."""
        return self._pool.timing

    # ---- engine thread ----

    def is_waiting(self, scheduler: Scheduler) -> bool:
        """Whether something can be begun, or ended. The caller holds the pool's condition, as for
        `take_job`."""
        if self.is_leaving:
            return True
        is_free = self.running is None or self.running.is_over
        return is_free and (self.is_speaking or self._has_job(scheduler))

    def begins_ns(self, scheduler: Scheduler) -> int | None:
        """When the next job can begin, None without one: speech that no other job follows begins with that of
        all. The caller holds the pool's condition."""
        if not self.jobs:
            return None
        due_ns, _ = self.jobs[0]
        if any(not isinstance(job, Hear) for _, job in self.jobs):
            return 0
        return scheduler.speech_begins_ns(due_ns - _HEAR_DUE_NS)

    def _has_job(self, scheduler: Scheduler) -> bool:
        begins_ns = self.begins_ns(scheduler)
        return begins_ns is not None and begins_ns <= time.monotonic_ns()

    @property
    def due_ns(self) -> int:
        """When the present piece of work is due; a job that waits for its end hurries it."""
        if self.is_leaving:
            return 0
        due_ns = self.played_until_ns if self._running_due_ns is None else self._running_due_ns
        jobs = self.jobs.copy()  # other threads add to it
        return min(due_ns, jobs[0][0]) if jobs else due_ns

    def take_job(self, scheduler: Scheduler) -> Job | None:
        """The next job that can begin; None if there is none."""
        self._running_due_ns, job = self.jobs.popleft() if self._has_job(scheduler) else (None, None)
        if not isinstance(job, Hear):
            return job
        # Speech that has waited is encoded and prefilled at once, which takes less time than block by block.
        blocks = [job.pcm]
        while self.jobs and isinstance(later := self.jobs[0][1], Hear) and later.turn_id == job.turn_id:
            blocks.append(later.pcm)
            self.jobs.popleft()
        return job if len(blocks) == 1 else Hear(job.turn_id, np.concatenate(blocks))

    def begin(self, engine: Engine, scheduler: Scheduler, job: Job | None) -> None:
        """Begin a job or, without one, the next event of the reply."""
        task = self._advance() if job is None else self._carry_out(engine, job)
        self.running = scheduler.start(task, lambda: self.due_ns)

    def _carry_out(self, engine: Engine, job: Job) -> Task[None]:
        if self._turns is None:
            self._history = EngineHistory(engine, self._give)
            self._turns = EngineTurns(self._history, self._give)
        if isinstance(job, Commit):
            self.played_until_ns = time.monotonic_ns()
        yield from self._turns.carry_out(job)
        self.is_speaking = True

    def _advance(self) -> Task[None]:
        self.is_speaking = self._turns is not None and (yield from self._turns.advance())

    def end(self, scheduler: Scheduler) -> None:
        """Free what the engine holds for the conversation."""
        if self.running is not None and not self.running.is_over:
            scheduler.close(self.running)
        if self._history is not None:
            self._history.close()
        self._history = self._turns = None

    def _give(self, result: Result) -> None:
        if isinstance(result, ReplyResult) and isinstance(result.event, ReplyAudio):
            audio = result.event
            length_ns = len(audio.pcm) * 1_000_000_000 // audio.sample_rate
            self.played_until_ns = max(self.played_until_ns, time.monotonic_ns()) + length_ns
        self._deliver(result)


class EnginePool:
    """See the module."""

    def __init__(
        self,
        factory: EngineFactory,
        most: int | None = None,
        on_engine: Callable[[Engine], None] = lambda engine: None,
        *,
        batch_invariant: bool = False,
    ) -> None:
        """`factory` is called once, in the engine thread, and then `on_engine`. `most` is the number of
        conversations, None for as many as the engine is measured to serve. With `batch_invariant` no reply
        depends on what else runs, not even by rounding."""
        self._factory = factory
        self._on_engine = on_engine
        self._most = most
        self._work = threading.Condition()
        self._seats: list[Seat] = []
        self._is_closing = self._is_draining = False
        self.loaded = threading.Event()
        """Set once the engine is ready, or `problem` says why it never will be."""
        self.problem: MossVoiceError | None = None
        self.facts: EngineFacts | None = None
        self.capacity = 0
        """Conversations at once."""
        self._limit = ""
        """What limits them, in words."""
        self.scheduler = Scheduler(is_batching=not batch_invariant, clock_ns=time.monotonic_ns)
        """Engine thread, but for its times."""
        self._engine: Engine | None = None
        self._freed = FreedMemory()

    # ---- any thread ----

    @property
    def conversations(self) -> int:
        """Seats taken, with those whose memory is being freed."""
        return len(self._seats)

    @property
    def is_alive(self) -> bool:
        """Whether the engine is ready and conversations can be held."""
        return self.loaded.is_set() and self.problem is None and not self._is_closing

    @property
    def stats(self) -> BlockStats | None:
        """Usage of the KV pool, None before the engine is loaded."""
        return None if self._engine is None else self._engine.stats

    @property
    def flow_steps(self) -> FlowSteps | None:
        """Euler steps of the flow from the next turn on; None before the engine is loaded, and where several
        conversations share them."""
        engine = self._engine
        if engine is None or self.capacity != 1:
            return None
        return FlowSteps(engine.flow_steps, engine.bundle.flow.steps)

    @property
    def timing(self) -> TimingBus | None:
        """The engine's bus, None before it is loaded."""
        return None if self._engine is None else self._engine.timing

    def admit(self, deliver: Callable[[Result], None]) -> Seat:
        """A seat for a new conversation; `deliver` gets its results in the engine thread and must not block.
        PoolFullError says why there is none."""
        with self._work:
            if self._is_draining or not self.is_alive:
                raise PoolFullError("The server is shutting down. Connect to another one, or later.")
            if len(self._seats) >= self.capacity:
                raise PoolFullError(
                    f"All {self.capacity} conversations that this server can hold ({self._limit}) are in "
                    "progress. The next is admitted when one has ended."
                )
            seat = Seat(self, deliver)
            self._seats.append(seat)
            return seat

    def submit(self, seat: Seat, job: Job) -> None:
        """As `Seat.submit`."""
        with self._work:
            if not seat.is_leaving:
                wait_ns = _HEAR_DUE_NS if isinstance(job, Hear) else 0
                seat.jobs.append((time.monotonic_ns() + wait_ns, job))
                self._work.notify()

    def leave(self, seat: Seat) -> None:
        """As `Seat.close`."""
        with self._work:
            seat.is_leaving = True
            seat.jobs.clear()
            self._work.notify()

    def drain(self) -> None:
        """Admit nobody from now on."""
        with self._work:
            self._is_draining = True

    def close(self) -> None:
        """End all conversations, close the engine, and end `run`."""
        with self._work:
            self._is_closing = True
            self._work.notify()

    # ---- engine thread ----

    def run(self) -> None:
        """Body of the engine thread: load, work, close."""
        with ExitStack() as stack:
            try:
                engine = self._engine = self._load(stack)
            except MossVoiceError as error:
                self.problem = error
                return
            except Exception as error:
                _log.exception("the engine cannot be loaded")
                self.problem = MossVoiceError(
                    f"The engine cannot be loaded: {type(error).__name__}: {error}. `moss-voice doctor` "
                    "shows what is missing."
                )
                return
            finally:
                self.loaded.set()
            try:
                while (work := self._next()) is not None:
                    for seat, job in work:
                        self._begin(engine, seat, job)
                    self.scheduler.run_once()
                    self._freed.give_back(at_once=self.scheduler.is_idle)
                for seat in self._seats:
                    seat.end(self.scheduler)
                self._seats.clear()
            except Exception as error:
                # A failed turn is a result; this is the engine itself. /health reports it.
                _log.exception("the engine thread failed")
                self.problem = MossVoiceError(f"The engine failed: {error}. Start the server again.")

    def _next(self) -> list[tuple[Seat, Job | None]] | None:
        """The seats with something to begin, and their jobs, perhaps none while work waits in the scheduler;
        None at the end."""
        with self._work:
            while True:
                if self._is_closing:
                    return None
                waiting = [seat for seat in self._seats if seat.is_waiting(self.scheduler)]
                if waiting or not self.scheduler.is_idle:
                    waiting.sort(key=lambda seat: seat.due_ns)
                    return [(seat, seat.take_job(self.scheduler)) for seat in waiting]
                begins = [seat.begins_ns(self.scheduler) for seat in self._seats]
                next_ns = min((at_ns for at_ns in begins if at_ns is not None), default=None)
                self._work.wait(None if next_ns is None else max(next_ns - time.monotonic_ns(), 0) / 1e9)

    def _begin(self, engine: Engine, seat: Seat, job: Job | None) -> None:
        if seat.is_leaving:
            seat.end(self.scheduler)
            with self._work:
                self._seats.remove(seat)
            self._freed.note()
        else:
            seat.begin(engine, self.scheduler, job)

    def _load(self, stack: ExitStack) -> Engine:
        engine = stack.enter_context(self._factory())
        engine.warm_up()
        self.scheduler.is_batching = self.scheduler.is_batching and engine.gains_from_batches
        admission = choose_admission(engine, self.scheduler, self._most)
        self.capacity, self._limit = admission.conversations, admission.limit
        self.scheduler.times.clear()
        self._on_engine(engine)
        # What was loaded stays. Without this, a collection walks all of it while replies wait.
        gc.collect()
        gc.freeze()
        stack.callback(gc.unfreeze)
        self.facts = EngineFacts(
            engine.bundle.name,
            engine.input_sample_rate,
            engine.output_sample_rate,
            engine.bundle.samples_per_code,
            admission.rtf,
        )
        fields = {"rtf": round(admission.rtf, 3), "conversations": self.capacity, "limited": self._limit}
        _log.info("engine_ready", extra={"fields": fields})
        return engine
