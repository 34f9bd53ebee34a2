"""The engine side of a session: executes jobs in order and returns results.

In: jobs from the dialog thread. Out: results, in a queue. `run` is the body of the engine thread, the only
one that touches the engine; `submit`, `cancel` and `interrupt` belong to the dialog thread.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from queue import SimpleQueue
from typing import TYPE_CHECKING

from app.session.commands import EngineFactory
from app.session.engine_history import EngineHistory
from app.session.engine_jobs import Cancel, Close, Interrupt, Job, Load, Loaded, LoadFailed, Result
from app.session.engine_turns import EngineTurns
from app.session.pending_work import PendingWork
from engine_runtime.errors import MossVoiceError

if TYPE_CHECKING:  # torch is imported by the factory, in the engine thread
    from engine_runtime.conversation.snapshot import ConversationSnapshot
    from engine_runtime.engine import Engine

_log = logging.getLogger(__name__)


class EngineWorker:
    """One engine at a time, one conversation, one turn at a time."""

    def __init__(
        self, factory: EngineFactory, on_engine: Callable[[Engine], None], pending: PendingWork
    ) -> None:
        """`on_engine` is called in the engine thread when an engine was loaded. `pending` counts the jobs
        that wait or are being carried out."""
        self.results: SimpleQueue[Result] = SimpleQueue()
        self._factory = factory
        self._on_engine = on_engine
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._pending = pending
        pending.begin()  # loading
        self._turns: EngineTurns | None = None

    # ---- dialog thread ----

    def submit(self, job: Job) -> None:
        """Put a job in the queue; never blocks."""
        self._pending.begin()
        self._jobs.put(job)

    def cancel(self, turn_id: int) -> None:
        """Drop the turn that is being spoken, after the current step at the latest. The caller has cancelled
        its scope."""
        if self._turns is not None:
            self._turns.cancel(turn_id)
        self.submit(Cancel(turn_id))

    def interrupt(self, turn_id: int, samples_played: int, characters_shown: int) -> None:
        """Stop the reply after the current step at the latest, and keep the part that was heard. The caller
        has cancelled the scope of the turn."""
        if self._turns is not None:
            self._turns.truncate(turn_id, samples_played, characters_shown)
        self.submit(Interrupt(turn_id, samples_played, characters_shown))

    # ---- engine thread ----

    def run(self) -> None:
        """Body of the engine thread: load, work, close, until there is no other engine to load."""
        factory: EngineFactory | None = self._factory
        earlier: ConversationSnapshot | None = None
        while factory is not None:
            factory, earlier = self._serve(factory, earlier)
            if factory is not None:
                gc.collect()  # an engine has reference cycles, and the next one needs its memory

    def _serve(
        self, factory: EngineFactory, earlier: ConversationSnapshot | None
    ) -> tuple[EngineFactory | None, ConversationSnapshot | None]:
        """The life of one engine, which continues the conversation `earlier`. Returns the factory of the next
        one, None to end, and the conversation; nothing of the engine is referenced any more then."""
        with ExitStack() as stack:
            history = self._load(factory, earlier, stack)
            if history is not None:
                self._turns = EngineTurns(history, self.results.put)
            self._pending.end()
            following = self._work(history)
            self._turns = None
            return following, earlier if history is None else history.snapshot

    def _work(self, history: EngineHistory | None) -> EngineFactory | None:
        """Carry out the jobs; returns the factory of the next engine, None to end."""
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
        turns.carry_out(job)
        while turns.advance():
            pass
        if not turns.is_speculative:
            try:
                history.publish()
            except Exception as error:
                turns.fail(job, error)

    def _load(
        self, factory: EngineFactory, earlier: ConversationSnapshot | None, stack: ExitStack
    ) -> EngineHistory | None:
        started_s = time.perf_counter()
        try:
            engine = stack.enter_context(factory())
            engine.warm_up()
            history = EngineHistory(engine, self.results.put)
            stack.callback(history.close)
            keeps_history = history.continue_from(earlier)
        except MossVoiceError as error:
            self.results.put(LoadFailed(error.what_is_wrong, error.what_to_do))
            return None
        except Exception as error:
            _log.exception("the engine cannot be loaded")
            self.results.put(
                LoadFailed(
                    f"The engine cannot be loaded: {type(error).__name__}: {error}.",
                    "`moss-voice doctor` shows what is missing.",
                )
            )
            return None
        # What was loaded stays. Without this, a collection walks all of it while the audio callbacks wait.
        gc.collect()
        gc.freeze()
        stack.callback(gc.unfreeze)
        self._on_engine(engine)
        self.results.put(
            Loaded(
                engine.bundle.name,
                time.perf_counter() - started_s,
                engine.input_sample_rate,
                engine.output_sample_rate,
                engine.bundle.samples_per_code,
                engine.bundle.card,
                keeps_history,
            )
        )
        history.publish()
        return history
