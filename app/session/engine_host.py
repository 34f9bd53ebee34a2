"""One engine thread: an engine at a time, for one conversation or many.

In: jobs of each conversation, at its `EngineSlot`. Out: results, given to the conversation in the engine
thread. `EngineHost.run` is the body of that thread, the only one that touches an engine and a `SlotRun`;
everything else of a host and a slot may be called from any thread.

Each conversation runs one task at a time, a job or the next event of its reply, and the scheduler runs equal
work of several in one call (engine_runtime/scheduler). Tasks run earliest deadline first: a job at once,
speech 340 ms after it was submitted, the next event of a reply when the audio made so far has been played.

Admission: a slot has all KV blocks that its conversation can need, and there are as many slots as the
`admit` of the host allows. So a conversation is never slowed down or cut short because of another one.

`Load` puts another engine in the place of the present one, which continues the conversation where it can.
A source may make a `RemoteEngine` instead, which gets the jobs of the slot through a `SlotPort`.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from app.heap import FreedMemory
from app.session.clocks import PendingWork
from app.session.engine_jobs import (
    Commit,
    EngineNotice,
    FlowSteps,
    Hear,
    Job,
    Load,
    Loaded,
    LoadFailed,
    ReplyResult,
    Result,
)
from app.session.engine_slot import HEAR_DUE_NS, EngineSlot, EngineSource, RemoteEngine, SlotPort
from app.session.engine_turns import EngineHistory, EngineTurns
from engine_runtime.errors import MossVoiceError, Problem
from engine_runtime.scheduler import ScheduledTask, Scheduler
from engine_runtime.thread_owner import ThreadOwner
from engine_runtime.timing import TimingBus
from engine_runtime.types import ReplyAudio
from engine_runtime.work import Task

if TYPE_CHECKING:  # they import torch
    from engine_runtime.conversation.context_window import TurnRoom
    from engine_runtime.conversation.snapshot import ConversationSnapshot
    from engine_runtime.engine import BlockStats, Engine

_log = logging.getLogger(__name__)


class HostFullError(MossVoiceError):
    """No conversation can be admitted now."""


@dataclass(frozen=True, slots=True)
class Admission:
    """`limit` is what limits the number of conversations, in words; `rtf` that of a single reply, 0 where it
    was not measured."""

    conversations: int = 1
    limit: str = ""
    rtf: float = 0.0


def admit_one(engine: Engine, scheduler: Scheduler) -> Admission:
    """A single conversation, without a measurement."""
    return Admission()


class SlotRun:
    """The engine thread's side of a slot: one task at a time, a job or the next event of its reply."""

    def __init__(
        self,
        slot: EngineSlot,
        deliver: Callable[[Result], None],
        pending: PendingWork,
        scheduler: Scheduler,
        owner: ThreadOwner,
    ) -> None:
        """`pending` counts a reply as long as it has more to be made. `owner` is the engine thread."""
        self.slot = slot
        self._deliver, self._pending, self._scheduler, self._owner = deliver, pending, scheduler, owner
        self._is_speaking = False
        """Whether the reply has more to be made."""
        self._played_until_ns = 0
        """When the audio made so far has been played by a client that plays at once."""
        self._running: ScheduledTask | None = None
        """The job or event in progress."""
        self._running_due_ns: int | None = None
        """When the job in progress is due; None for an event."""
        self._history: EngineHistory | None = None
        self._turns: EngineTurns | None = None

    def open(self, engine: Engine, earlier: ConversationSnapshot | None = None) -> bool:
        """Begin a conversation, or continue `earlier`; False if the model of that is another one, and a new
        conversation has begun."""
        self._history = EngineHistory(engine, self.give)
        self._turns = EngineTurns(self._history, self.give)
        return self._history.continue_from(earlier)

    def publish(self) -> None:
        """Publish the history if it changed."""
        if self._history is not None:
            self._history.publish()

    @property
    def snapshot(self) -> ConversationSnapshot | None:
        """The history as it is now, None without a conversation."""
        return None if self._history is None else self._history.snapshot

    # The caller of these holds the condition of the host.

    @property
    def is_free(self) -> bool:
        """Whether nothing is in progress."""
        return self._running is None or self._running.is_over

    def is_waiting(self, now_ns: int) -> bool:
        """Whether something can be begun, or ended."""
        if self.slot.is_closed:
            return True
        return self.is_free and (self._is_speaking or self._has_job(now_ns))

    @property
    def begins_ns(self) -> int | None:
        """When the next job can begin, None without one: speech that no other job follows begins at the
        common tick."""
        jobs = self.slot.jobs
        if not jobs:
            return None
        for _, job in jobs:  # not any(): every slot is asked before every call of the engine
            if not isinstance(job, Hear):
                return 0
        return self._scheduler.speech_begins_ns(jobs[0][0] - HEAR_DUE_NS)

    def _has_job(self, now_ns: int) -> bool:
        begins_ns = self.begins_ns
        return begins_ns is not None and begins_ns <= now_ns

    def take_job(self, now_ns: int) -> Job | None:
        """The next job that can begin; None if there is none."""
        jobs = self.slot.jobs
        self._running_due_ns, job = jobs.popleft() if self._has_job(now_ns) else (None, None)
        if not isinstance(job, Hear):
            return job
        # Speech that has waited is encoded and prefilled at once, which takes less time than block by block.
        blocks = [job.pcm]
        while jobs and isinstance(later := jobs[0][1], Hear) and later.turn_id == job.turn_id:
            blocks.append(later.pcm)
            self.slot.pop()
            self._pending.end()
        return job if len(blocks) == 1 else Hear(job.turn_id, np.concatenate(blocks))

    # ----

    @property
    def due_ns(self) -> int:
        """When the task in progress is due; a job that waits for it makes it due earlier."""
        if self.slot.is_closed:
            return 0
        due_ns = self._played_until_ns if self._running_due_ns is None else self._running_due_ns
        jobs = self.slot.jobs.copy()  # other threads add to it
        return min(due_ns, jobs[0][0]) if jobs else due_ns

    def begin(self, engine: Engine, job: Job | None) -> None:
        """Begin a job or, without one, the next event of the reply."""
        assert self._owner.is_here
        task = self._advance() if job is None else self._carry_out(engine, job)
        self._running = self._scheduler.start(task, lambda: self.due_ns)

    def _carry_out(self, engine: Engine, job: Job) -> Task[None]:
        try:
            if self._turns is None:
                self.open(engine)
            assert self._turns is not None
            if isinstance(job, Commit):
                self._played_until_ns = time.monotonic_ns()
            yield from self._turns.carry_out(job)
            if not isinstance(job, Hear):  # after which there is nothing to make or to publish
                self.speak(True)
        finally:
            self._pending.end()

    def _advance(self) -> Task[None]:
        self.speak(self._turns is not None and (yield from self._turns.advance()))

    def speak(self, on: bool) -> None:
        """Set whether the reply has more to be made."""
        if on != self._is_speaking:
            self._is_speaking = on
            (self._pending.begin if on else self._pending.end)()

    def end(self) -> None:
        """Abandon what is in progress, and free what the engine holds for the conversation."""
        assert self._owner.is_here
        if self._running is not None and not self._running.is_over:
            self._scheduler.close(self._running)
        self.speak(False)
        if self._history is not None:
            self._history.close()
        self._history = self._turns = self._running = None

    def give(self, result: Result) -> None:
        """Deliver a result to the owner of the slot."""
        if isinstance(result, ReplyResult) and isinstance(result.event, ReplyAudio):
            audio = result.event
            length_ns = len(audio.pcm) * 1_000_000_000 // audio.sample_rate
            self._played_until_ns = max(self._played_until_ns, time.monotonic_ns()) + length_ns
        self._deliver(result)


class EngineHost:
    """Runs one engine in its thread for the sessions that it admits."""

    def __init__(
        self,
        source: EngineSource,
        admit: Callable[[Engine, Scheduler], Admission] = admit_one,
        *,
        on_engine: Callable[[TimingBus], None] = lambda timing: None,
        pending: PendingWork | None = None,
        is_batching: bool = False,
    ) -> None:
        """`source` is called once, in the engine thread; so are, for each engine, `admit`, which sets the
        number of conversations, and `on_engine`, with its timing bus. `pending` counts the loading, the jobs
        and the replies in progress. Without `is_batching` each work runs alone, so that no reply depends on
        what else runs, not even by rounding."""
        self._source, self._admit, self._on_engine = source, admit, on_engine
        self._pending = pending or PendingWork()
        self._pending.begin()  # loading
        self._is_batching = is_batching
        self._changed = threading.Condition()
        self._runs: list[SlotRun] = []
        self._is_closing = self._is_draining = False
        self.loaded = threading.Event()
        """Set once the engine is ready, or `problem` says why it is not."""
        self.problem: MossVoiceError | None = None
        self.facts: Loaded | None = None
        """The latest engine of this process, None before the first."""
        self.admission = Admission()
        self.scheduler = Scheduler(is_batching=is_batching, clock_ns=time.monotonic_ns)
        """Engine thread, but for its times."""
        self._engine: Engine | None = None
        self._held_elsewhere = False
        """Whether turns were held that no engine of this process knows."""
        self._owner = ThreadOwner()
        self._freed = FreedMemory()

    # ---- any thread ----

    @property
    def conversations(self) -> int:
        """Slots taken, with those whose memory is being freed."""
        return len(self._runs)

    @property
    def capacity(self) -> int:
        """Conversations at once."""
        return self.admission.conversations

    @property
    def is_alive(self) -> bool:
        """Whether the engine is ready and conversations can be held."""
        return self.loaded.is_set() and self.problem is None and not self._is_closing

    @property
    def stats(self) -> BlockStats | None:
        """Usage of the KV pool, None without an engine."""
        return None if self._engine is None else self._engine.stats

    @property
    def timing(self) -> TimingBus | None:
        """The bus of the engine, None without one."""
        return None if self._engine is None else self._engine.timing

    @property
    def flow_steps(self) -> FlowSteps | None:
        """Euler steps of the flow from the next turn on; None without an engine, and where several
        conversations share them."""
        engine = self._engine
        if engine is None or self.capacity != 1:
            return None
        return FlowSteps(engine.flow_steps, engine.bundle.flow.steps)

    @property
    def turn_room(self) -> TurnRoom | None:
        """How much of the context a turn of the user may take; None without an engine."""
        return None if self._engine is None else self._engine.turn_room

    def open_slot(self, deliver: Callable[[Result], None]) -> EngineSlot:
        """Open a slot for a conversation; `deliver` gets its results in the engine thread and must not block.
        HostFullError says why there is none."""
        with self._changed:
            if self._is_draining or self._is_closing or self.problem is not None:
                raise HostFullError(
                    "The server is shutting down.", "Connect to another one, or try again later."
                )
            if len(self._runs) >= self.capacity:
                raise HostFullError(
                    "All {capacity} conversations that this server can hold ({limit}) are in progress.",
                    "Try again when one has ended.",
                    capacity=self.capacity,
                    limit=self.admission.limit,
                )
            slot = EngineSlot(self._changed, self._pending)
            self._runs.append(SlotRun(slot, deliver, self._pending, self.scheduler, self._owner))
            return slot

    def drain(self) -> None:
        """Admit nobody from now on."""
        with self._changed:
            self._is_draining = True

    def close(self) -> None:
        """End all conversations, close the engine, and end `run`."""
        with self._changed:
            self._is_closing = True
            for run in self._runs:
                run.slot.close()
            self._changed.notify()

    # ---- engine thread ----

    def run(self) -> None:
        """Body of the engine thread: load, work, close, until there is no other engine to load."""
        self._owner.claim()
        source: EngineSource | None = self._source
        earlier: ConversationSnapshot | None = None
        try:
            while source is not None:
                earlier = self._serve(source, earlier)
                if (source := self._await_source()) is not None:
                    gc.collect()  # an engine has reference cycles, and the next one needs its memory
        except Exception as error:
            # A failed turn is a result; this is the engine itself. /health reports it.
            _log.exception("the engine thread failed")
            self.problem = MossVoiceError("The engine failed: {error}.", "Restart the server.", error=error)
        finally:
            self._runs.clear()

    def _serve(
        self, source: EngineSource, earlier: ConversationSnapshot | None
    ) -> ConversationSnapshot | None:
        """The life of one engine, which continues the conversation `earlier`. Returns the conversation for
        the next one; nothing of the engine is referenced any more then."""
        began_s = time.perf_counter()
        with ExitStack() as stack:
            try:
                made = source()
                if not isinstance(made, RemoteEngine):
                    engine = self._load(made, stack, earlier, began_s)
            except Exception as error:
                self._report(error)
                return earlier
            if isinstance(made, RemoteEngine):
                self._serve_elsewhere(made, earlier)
                return None
            self._work(engine)
            return next((run.snapshot for run in self._runs), None)

    def _load(
        self,
        made: AbstractContextManager[Engine],
        stack: ExitStack,
        earlier: ConversationSnapshot | None,
        began_s: float,
    ) -> Engine:
        engine = stack.enter_context(made)
        engine.owner.claim()
        stack.callback(engine.owner.release)
        stack.callback(self._leave_engine)
        engine.warm_up()
        self.scheduler.is_batching = self._is_batching and engine.gains_from_batches
        admission = self._admit(engine, self.scheduler)
        self.scheduler.times.clear()
        with self._changed:
            runs = list(self._runs)
        continued = [run.open(engine, earlier) and not self._held_elsewhere for run in runs]
        self._held_elsewhere = False
        # Loaded objects stay. Without this, a collection walks all of them while audio callbacks and replies
        # wait.
        gc.collect()
        gc.freeze()
        stack.callback(gc.unfreeze)
        self._engine, self.admission, self.problem = engine, admission, None
        self._on_engine(engine.timing)
        facts = self.facts = Loaded(
            engine.bundle.name,
            time.perf_counter() - began_s,
            engine.input_sample_rate,
            engine.output_sample_rate,
            engine.bundle.samples_per_code,
            engine.bundle.card,
            flow_steps=FlowSteps(engine.flow_steps, engine.bundle.flow.steps),
            machine=engine.machine,
        )
        for run, keeps_history in zip(runs, continued, strict=True):
            run.give(replace(facts, keeps_history=keeps_history))
            for note in engine.notes:
                run.give(EngineNotice(note))
            run.publish()
        fields = {
            "rtf": round(admission.rtf, 3),
            "conversations": admission.conversations,
            "limited": admission.limit,
        }
        _log.info("engine_ready", extra={"fields": fields})
        self.loaded.set()
        self._pending.end()
        return engine

    def _leave_engine(self) -> None:
        self._engine = None
        for run in self._runs:
            run.end()

    def _report(self, error: Exception) -> None:
        """There is no engine."""
        if not isinstance(error, MossVoiceError):
            _log.error("the engine cannot be loaded", exc_info=error)
            error = MossVoiceError(
                "The engine cannot be loaded: {kind}: {error}.",
                "`moss-voice doctor` shows what is missing.",
                kind=type(error).__name__,
                error=error,
            )
        # Not the error itself: its traceback refers to the loaded engine.
        self.problem = MossVoiceError.from_problem(error.problem)
        for run in self._runs:
            run.give(LoadFailed(error.problem))
        self.loaded.set()
        self._pending.end()

    def _serve_elsewhere(self, remote: RemoteEngine, earlier: ConversationSnapshot | None) -> None:
        """The life of a remote engine, for the only slot."""
        (run,) = self._runs
        has_history = self._held_elsewhere or (earlier is not None and bool(earlier.exchanges))
        port = SlotPort(run.slot, self._changed, self._pending, run.give, self._on_engine)
        try:
            remote.converse(port, has_history=has_history)
        except MossVoiceError as error:
            port.fail(error.problem)
        except Exception as error:
            _log.exception("the conversation with a server failed")
            port.fail(
                Problem(
                    "The conversation failed with an unexpected {kind}: {error}.",
                    "See the log file for details.",
                    kind=type(error).__name__,
                    error=error,
                )
            )
        finally:
            port.on_job(None)
            self._held_elsewhere = has_history or port.has_turns

    def _await_source(self) -> EngineSource | None:
        """The source of the next engine, None at the end. Until then there is none, and jobs are dropped. The
        count of the job that names the source becomes that of the loading."""
        with self._changed:
            while not self._is_closing:
                for run in self._runs:
                    run.slot.drop_jobs()
                    if run.slot.is_changing_engines:
                        job = run.slot.pop()
                        assert isinstance(job, Load)
                        source: EngineSource = job.factory
                        return source
                self._changed.wait()
        return None

    def _work(self, engine: Engine) -> None:
        while (work := self._next()) is not None:
            for run, job in work:
                self._begin(engine, run, job)
            self.scheduler.run_once()
            self._freed.give_back(at_once=self.scheduler.is_idle)

    def _next(self) -> list[tuple[SlotRun, Job | None]] | None:
        """The slots with something to begin, and their jobs, perhaps none while work waits in the scheduler;
        None at the end of the engine."""
        with self._changed:
            while True:
                if self._is_closing:
                    return None
                now_ns = time.monotonic_ns()
                waiting = [run for run in self._runs if run.is_waiting(now_ns)]
                if any(run.slot.is_changing_engines and run.is_free for run in waiting):
                    return None
                if waiting or not self.scheduler.is_idle:
                    waiting.sort(key=lambda run: run.due_ns)
                    return [(run, run.take_job(now_ns)) for run in waiting]
                begins = [run.begins_ns for run in self._runs]
                next_ns = min((at_ns for at_ns in begins if at_ns is not None), default=None)
                self._changed.wait(None if next_ns is None else max(next_ns - time.monotonic_ns(), 0) / 1e9)

    def _begin(self, engine: Engine, run: SlotRun, job: Job | None) -> None:
        if not run.slot.is_closed:
            run.begin(engine, job)
            return
        if job is not None:
            self._pending.end()
        run.end()
        with self._changed:
            self._runs.remove(run)
        self._freed.note()
