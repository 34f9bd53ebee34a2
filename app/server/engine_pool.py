"""One loaded engine shared by several conversations, which take turns in its thread; admission to it.

In: jobs of each conversation. Out: results, given to the conversation in the engine thread. `run` is the body
of the engine thread, the only one that touches the engine; everything else may be called from any thread.

The unit of work is one job or one event of a reply. What is due first goes first: a job 50 ms after it was
submitted, the next event of a reply when the audio made so far has been played.

Admission: a conversation gets a `Seat`, or `PoolFullError` with the reason. Each seat has all KV blocks that
a conversation can need, and as many seats exist as can speak at once without a gap at the measured speed. So
an admitted conversation is never slowed down or cut short because of another one.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from app.session.commands import EngineFactory
from app.session.engine_history import EngineHistory
from app.session.engine_jobs import Commit, Job, ReplyResult, Result
from app.session.engine_turns import EngineTurns
from engine_runtime.errors import MossVoiceError
from engine_runtime.types import Modality, ReplyAudio

if TYPE_CHECKING:  # it imports torch
    from engine_runtime.engine import BlockStats, Engine

_JOB_DUE_NS = 50_000_000
_PROBE_CODES = 25
"""Length of the reply whose speed is measured at the start: 2 s of speech."""
_USABLE = 0.9
"""Share of the engine's time that replies may take when all conversations speak at once."""
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
        self._history: EngineHistory | None = None
        self._turns: EngineTurns | None = None

    def submit(self, job: Job) -> None:
        """Put a job in the queue; never blocks. A closed seat takes none."""
        self._pool.submit(self, job)

    def close(self) -> None:
        """End the conversation after the present step; its KV blocks are freed. May be called twice."""
        self._pool.leave(self)

    @property
    def due_ns(self) -> int | None:
        """When the next piece of work is due, None if there is none."""
        if self.is_leaving:
            return 0
        if self.jobs:
            return self.jobs[0][0]
        return self.played_until_ns if self.is_speaking else None

    # ---- engine thread ----

    def carry_out(self, engine: Engine, job: Job) -> None:
        """Execute a job."""
        if self._turns is None:
            self._history = EngineHistory(engine, self._give)
            self._turns = EngineTurns(self._history, self._give)
        if isinstance(job, Commit):
            self.played_until_ns = time.monotonic_ns()
        self._turns.carry_out(job)
        self.is_speaking = True

    def advance(self) -> None:
        """Make the next event of the reply."""
        self.is_speaking = self._turns is not None and self._turns.advance()

    def end(self) -> None:
        """Free what the engine holds for the conversation."""
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
    ) -> None:
        """`factory` is called once, in the engine thread, and then `on_engine`. `most` is the number of
        conversations, None for as many as the engine is measured to serve."""
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
        self._engine: Engine | None = None

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

    def admit(self, deliver: Callable[[Result], None]) -> Seat:
        """A seat for a new conversation; `deliver` gets its results in the engine thread and must not block.
        PoolFullError says why there is none."""
        with self._work:
            if self._is_draining or not self.is_alive:
                raise PoolFullError("The server is shutting down. Connect to another one, or later.")
            if len(self._seats) >= self.capacity:
                raise PoolFullError(
                    f"All {self.capacity} conversations that this server can hold ({self._limit}) are in "
                    "progress. Try again when one has ended."
                )
            seat = Seat(self, deliver)
            self._seats.append(seat)
            return seat

    def submit(self, seat: Seat, job: Job) -> None:
        """As `Seat.submit`."""
        with self._work:
            if not seat.is_leaving:
                seat.jobs.append((time.monotonic_ns() + _JOB_DUE_NS, job))
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
                    self._do(engine, *work)
                for seat in self._seats:
                    seat.end()
                self._seats.clear()
            except Exception as error:
                # A failed turn is a result; this is the engine itself. /health reports it.
                _log.exception("the engine thread failed")
                self.problem = MossVoiceError(f"The engine failed: {error}. Start the server again.")

    def _next(self) -> tuple[Seat, Job | None] | None:
        """The seat whose work is due first, with its job if it has one; None at the end."""
        with self._work:
            while True:
                if self._is_closing:
                    return None
                due = [(due_ns, place) for place, seat in enumerate(self._seats)
                       if (due_ns := seat.due_ns) is not None]  # fmt: skip
                if due:
                    seat = self._seats[min(due)[1]]
                    return seat, seat.jobs.popleft()[1] if seat.jobs else None
                self._work.wait()

    def _do(self, engine: Engine, seat: Seat, job: Job | None) -> None:
        if seat.is_leaving:
            seat.end()
            with self._work:
                self._seats.remove(seat)
        elif job is not None:
            seat.carry_out(engine, job)
        else:
            seat.advance()

    def _load(self, stack: ExitStack) -> Engine:
        engine = stack.enter_context(self._factory())
        engine.warm_up()
        rtf = _measure_rtf(engine)
        self._set_capacity(engine, rtf)
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
            rtf,
        )
        fields = {"rtf": round(rtf, 3), "conversations": self.capacity, "limited": self._limit}
        _log.info("engine_ready", extra={"fields": fields})
        return engine

    def _set_capacity(self, engine: Engine, rtf: float) -> None:
        with_memory = engine.stats.total // engine.conversation_blocks
        if self._most is not None and self._most > with_memory:
            raise MossVoiceError(
                f"The KV cache of {engine.bundle.name} holds {with_memory} conversations, fewer than "
                f"{self._most}. Ask for fewer with --conversations."
            )
        in_time = max(int(_USABLE / rtf), 1)
        choices = [(with_memory, "by its KV cache"), (in_time, f"by its speed, RTF {rtf:.2f}")]
        if self._most is not None:
            choices = [(self._most, "by --conversations")]
        self.capacity, self._limit = min(choices)


def _measure_rtf(engine: Engine) -> float:
    """Engine time of a spoken reply to a second of faint noise / its audio."""
    noise = np.random.default_rng(0).normal(0.0, 1e-3, engine.input_sample_rate).astype(np.float32)
    params = replace(engine.bundle.lm.sampling_speech, min_new=_PROBE_CODES, max_new=_PROBE_CODES)
    conversation = engine.new_conversation()
    try:
        turn = engine.open_turn(conversation, 0, Modality.SPEECH)
        turn.push(noise)
        began_s, audio_s = time.perf_counter(), 0.0
        for event in turn.commit(Modality.SPEECH, params):
            if isinstance(event, ReplyAudio):
                audio_s += len(event.pcm) / event.sample_rate
        return (time.perf_counter() - began_s) / audio_s
    finally:
        engine.end_conversation(conversation)
