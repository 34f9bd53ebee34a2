"""The engine side of a session: executes jobs in order and returns results.

In: jobs from the dialog thread. Out: results, in a queue. `run` is the body of the engine thread, the only
one that touches the engine; `submit`, `cancel` and `interrupt` belong to the dialog thread.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from queue import SimpleQueue
from typing import TYPE_CHECKING

from app.session.commands import EngineFactory
from app.session.engine_history import EngineHistory
from app.session.engine_jobs import (
    Ask,
    AskAgain,
    Cancel,
    Close,
    Commit,
    Confirm,
    Forget,
    Hear,
    Heard,
    Interrupt,
    Job,
    Load,
    Loaded,
    LoadFailed,
    OpenTurn,
    Remove,
    Reopen,
    Restore,
    Result,
    RolledBack,
    TurnFailed,
)
from app.session.pending_work import PendingWork
from app.session.reply_run import ReplyRun
from engine_runtime.errors import MossVoiceError
from engine_runtime.types import CancelScope, Modality

if TYPE_CHECKING:  # torch is imported by the factory, in the engine thread
    from engine_runtime.conversation.snapshot import ConversationSnapshot
    from engine_runtime.conversation.turn import Turn
    from engine_runtime.engine import Engine

_log = logging.getLogger(__name__)
_ANSWER_ROWS = 2
"""Rows of the shortest reply that is not empty: a word or a code, and its end."""


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
        self._turn: Turn | None = None
        self._scope = CancelScope()
        """Of the turn of `_turn`."""
        self._run: ReplyRun | None = None
        """The reply of `_turn`."""
        self._failed_turn = 0
        """The last failed turn: it accepts only the position up to which it was heard. Its scope is not
        cancelled, because audio generated before the failure is still played."""

    # ---- dialog thread ----

    def submit(self, job: Job) -> None:
        """Put a job in the queue; never blocks."""
        self._pending.begin()
        self._jobs.put(job)

    def cancel(self, turn_id: int) -> None:
        """Drop the turn that is being spoken, after the current step at the latest. The caller has cancelled
        its scope."""
        turn = self._turn
        if turn is not None and turn.turn_id == turn_id:
            turn.cancel()
        self.submit(Cancel(turn_id))

    def interrupt(self, turn_id: int, samples_played: int, characters_shown: int) -> None:
        """Stop the reply after the current step at the latest, and keep the part that was heard. The caller
        has cancelled the scope of the turn."""
        turn = self._turn
        if turn is not None and turn.turn_id == turn_id:
            turn.truncate(samples_played, characters_shown)
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
            self._pending.end()
            following = self._work(history)
            self._turn = self._run = None
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
                if history is not None:
                    if isinstance(job, Forget | Remove | Restore):
                        history.change(job)
                    else:
                        self._carry_out(history, job)
                    if self._run is None or not self._run.is_speculative:
                        history.publish()
            except MossVoiceError as error:
                self._fail(job, error.what_is_wrong, error.what_to_do)
            except Exception as error:
                _log.exception("the engine failed")
                self._fail(
                    job,
                    f"The engine failed with an unexpected {type(error).__name__}: {error}.",
                    "Ask again; if it happens again, see the log file for details.",
                )
            finally:
                self._pending.end()

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

    def _carry_out(
        self,
        history: EngineHistory,
        job: OpenTurn | Hear | Ask | AskAgain | Commit | Confirm | Reopen | Cancel | Interrupt,
    ) -> None:
        engine = history.engine
        if isinstance(job, OpenTurn):
            if not job.scope.is_cancelled:
                self._run = None
                self._turn = engine.open_turn(history.conversation, job.turn_id, job.reply)
                self._scope = job.scope
            return
        turn = self._turn
        if turn is None or turn.turn_id != job.turn_id:
            return
        if isinstance(job, Cancel):
            self._turn = None
            turn.cancel()
        elif isinstance(job, Interrupt):
            self._turn = None
            turn.truncate(job.samples_played, job.characters_shown)
            if self._run is not None and self._run.is_speculative:
                self._end_run(self._run.scope)
        elif self._scope.is_cancelled or job.turn_id == self._failed_turn:
            return
        elif isinstance(job, Hear):
            codes = turn.push(job.pcm)
            if codes:
                self.results.put(Heard(job.turn_id, codes))
        elif isinstance(job, Ask):
            turn.push_text(job.text)
        elif isinstance(job, AskAgain):
            history.ask_again(turn, job)
        elif isinstance(job, Reopen):
            turn.reopen()
            self._end_run(job.scope)
        elif isinstance(job, Commit):
            self._reply(engine, turn, job)
            history.note_question(turn)
        elif self._run is not None:
            self._run.is_speculative = False
            self._run.advance(self.results)

    def _reply(self, engine: Engine, turn: Turn, job: Commit) -> None:
        lm = engine.bundle.lm
        params = lm.sampling_text if job.reply is Modality.TEXT else lm.sampling_speech
        if job.seed is not None:
            params = replace(params, seed=job.seed)
        if lm.detects_turn_end:
            # The prediction says whether to answer; who is answered gets a word.
            params = replace(params, min_new=max(params.min_new, _ANSWER_ROWS))
        events = turn.commit(job.reply, params, scope=job.scope, timing=job.timings)
        self._run = ReplyRun(
            job.scope,
            events,
            is_speculative=job.timings is not None,
            finished=job.finished,
            clock_ns=engine.timing.clock_ns,
        )
        self._run.advance(self.results)

    def _end_run(self, scope: CancelScope) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.close()
        self.results.put(RolledBack(scope, run.work_ns if run else 0, time.perf_counter_ns()))

    def _fail(self, job: Job, message: str, what_to_do: str) -> None:
        turn_id = 0 if isinstance(job, Forget | Restore | Load | Close) else job.turn_id
        self._failed_turn = turn_id
        self._run = None
        if self._turn is not None:
            with contextlib.suppress(Exception):
                self._turn.cancel()
            if self._turn.turn_id != turn_id:
                self._turn = None
        self.results.put(TurnFailed(turn_id, message, what_to_do))
