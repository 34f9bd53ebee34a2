"""The engine side of a session: executes jobs in order and returns results.

In: jobs from the dialog thread. Out: results, in a queue. `run` is the body of the engine thread, the only
one that touches the engine; `submit` belongs to the dialog thread. A conversation that is held elsewhere has
an `EngineHost`, which gets the same jobs through an `EngineDesk`.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from queue import SimpleQueue
from typing import TYPE_CHECKING

from app.session.engine_desk import EngineDesk
from app.session.engine_history import EngineHistory
from app.session.engine_jobs import (
    Close,
    EngineNotice,
    FlowSteps,
    Job,
    Load,
    Loaded,
    LoadFailed,
    Result,
)
from app.session.engine_source import EngineHost, EngineSource
from app.session.engine_turns import EngineTurns
from app.session.pending_work import PendingWork
from engine_runtime.errors import MossVoiceError
from engine_runtime.timing import TimingBus
from engine_runtime.work import run_alone

if TYPE_CHECKING:  # torch is imported by the factory, in the engine thread
    from engine_runtime.conversation.snapshot import ConversationSnapshot
    from engine_runtime.engine import Engine

_log = logging.getLogger(__name__)


class EngineWorker:
    """One engine at a time, one conversation, one turn at a time."""

    def __init__(
        self, factory: EngineSource, on_engine: Callable[[TimingBus], None], pending: PendingWork
    ) -> None:
        """`on_engine` gets the timing bus in the engine thread when an engine was loaded. `pending` counts
        the jobs that wait or are being carried out."""
        self.results: SimpleQueue[Result] = SimpleQueue()
        self._factory = factory
        self._on_engine = on_engine
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._pending = pending
        pending.begin()  # loading
        self._turns: EngineTurns | None = None
        self._desk: EngineDesk | None = None
        """Of the present host."""
        self._held_elsewhere = False
        """Whether there were turns that an engine of this process knows nothing of."""

    # ---- dialog thread ----

    def submit(self, job: Job) -> None:
        """Put a job in the queue; never blocks."""
        self._pending.begin()
        self._jobs.put(job)
        if (desk := self._desk) is not None:
            desk.notify()

    # ---- engine thread ----

    def run(self) -> None:
        """Body of the engine thread: load, work, close, until there is no other engine to load."""
        source: EngineSource | None = self._factory
        earlier: ConversationSnapshot | None = None
        while source is not None:
            source, earlier = self._serve(source, earlier)
            if source is not None:
                gc.collect()  # an engine has reference cycles, and the next one needs its memory

    def _serve(
        self, source: EngineSource, earlier: ConversationSnapshot | None
    ) -> tuple[EngineSource | None, ConversationSnapshot | None]:
        """The life of one engine, which continues the conversation `earlier`. Returns the source of the next
        one, None to end, and the conversation; nothing of the engine is referenced any more then."""
        started_s = time.perf_counter()
        with ExitStack() as stack:
            try:
                engine = source()
            except Exception as error:
                engine = None
                self._report_failure(error)
            if isinstance(engine, EngineHost):
                return self._serve_elsewhere(engine, earlier), None
            history = None if engine is None else self._load(engine, earlier, stack, started_s)
            if history is not None:
                self._turns = EngineTurns(history, self.results.put)
            self._pending.end()
            following = self._work(history)
            self._turns = None
            return following, earlier if history is None else history.snapshot

    def _serve_elsewhere(self, host: EngineHost, earlier: ConversationSnapshot | None) -> EngineSource | None:
        """The same where a host holds the conversation."""
        has_history = self._held_elsewhere or (earlier is not None and bool(earlier.exchanges))
        desk = self._desk = EngineDesk(self._jobs, self._pending, self.results.put, self._on_engine)
        try:
            return host.converse(desk, has_history=has_history)
        except MossVoiceError as error:
            desk.fail(error.what_is_wrong, error.what_to_do)
        except Exception as error:
            _log.exception("the conversation with a server failed")
            what = f"The conversation failed with an unexpected {type(error).__name__}: {error}."
            desk.fail(what, "See the log file for details.")
        finally:
            self._desk = None
            self._held_elsewhere = has_history or desk.has_turns
        return self._work(None)

    def _work(self, history: EngineHistory | None) -> EngineSource | None:
        """Carry out the jobs; returns the source of the next engine, None to end."""
        while True:
            job = self._jobs.get()
            try:
                if isinstance(job, Close):
                    return None
                if isinstance(job, Load):
                    self._pending.begin()  # until it is loaded
                    return job.factory
                if self._turns is not None and history is not None:
                    self._carry_out(self._turns, history, job)
            finally:
                self._pending.end()

    def _carry_out(self, turns: EngineTurns, history: EngineHistory, job: Job) -> None:
        run_alone(turns.carry_out(job))
        while run_alone(turns.advance()):
            pass
        if not turns.is_speculative:
            try:
                history.publish()
            except Exception as error:
                turns.fail(job, error)

    def _load(
        self,
        loaded: AbstractContextManager[Engine],
        earlier: ConversationSnapshot | None,
        stack: ExitStack,
        started_s: float,
    ) -> EngineHistory | None:
        try:
            engine = stack.enter_context(loaded)
            engine.warm_up()
            history = EngineHistory(engine, self.results.put)
            stack.callback(history.close)
            keeps_history = history.continue_from(earlier) and not self._held_elsewhere
            self._held_elsewhere = False
        except Exception as error:
            self._report_failure(error)
            return None
        # What was loaded stays. Without this, a collection walks all of it while the audio callbacks wait.
        gc.collect()
        gc.freeze()
        stack.callback(gc.unfreeze)
        self._on_engine(engine.timing)
        self.results.put(
            Loaded(
                engine.bundle.name,
                time.perf_counter() - started_s,
                engine.input_sample_rate,
                engine.output_sample_rate,
                engine.bundle.samples_per_code,
                engine.bundle.card,
                keeps_history,
                flow_steps=FlowSteps(engine.flow_steps, engine.bundle.flow.steps),
            )
        )
        for text in engine.notes:
            self.results.put(EngineNotice(text))
        history.publish()
        return history

    def _report_failure(self, error: Exception) -> None:
        if isinstance(error, MossVoiceError):
            self.results.put(LoadFailed(error.what_is_wrong, error.what_to_do))
            return
        _log.error("the engine cannot be loaded", exc_info=error)
        what = f"The engine cannot be loaded: {type(error).__name__}: {error}."
        self.results.put(LoadFailed(what, "`moss-voice doctor` shows what is missing."))
