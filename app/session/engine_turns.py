"""The turns of one conversation in the engine: carries out jobs, makes the reply one event after the other.

In: jobs about turns. Out: results. It owns neither a queue nor a thread: the `EngineHost` runs the tasks of
one or several conversations. Engine thread.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from app.session.engine_history import EngineHistory
from app.session.engine_jobs import (
    Ask,
    AskAgain,
    Cancel,
    Commit,
    Confirm,
    FlowSteps,
    FlowStepsSet,
    Hear,
    Heard,
    Interrupt,
    Job,
    Load,
    OpenTurn,
    Remember,
    Remove,
    Reopen,
    Result,
    RolledBack,
    TurnFailed,
    UseFlowSteps,
)
from app.session.reply_run import KeptTimings, ReplyRun
from engine_runtime.errors import MossVoiceError, Problem
from engine_runtime.types import CancelScope, Modality
from engine_runtime.work import Task

if TYPE_CHECKING:  # torch is imported by the factory, in the engine thread
    from engine_runtime.conversation.turn import Turn

_log = logging.getLogger(__name__)
_ANSWER_ROWS = 2
"""Rows of the shortest reply that is not empty: a word or a code, and its end."""
KEPT_TURNS = 4
"""Latest turns whose reply can still be cut at what was heard: a client may report that late."""

TurnJob = OpenTurn | Hear | Ask | AskAgain | Commit | Confirm | Reopen | Cancel | Interrupt


class EngineTurns:
    """One turn at a time."""

    def __init__(self, history: EngineHistory, give: Callable[[Result], None]) -> None:
        """`history` is the conversation; `give` gets the results."""
        self._engine, self._history, self._give = history.engine, history, give
        self._turn: Turn | None = None
        self._earlier: dict[int, Turn] = {}
        """The latest turns, oldest first, with that of `_turn`."""
        self._scope = CancelScope()
        """Cancel scope of the current turn."""
        self._run: ReplyRun | None = None
        """The reply of `_turn`."""
        self._failed_turn = 0
        """The last failed turn: it accepts only the position up to which it was heard. Its scope is not
        cancelled, because audio generated before the failure is still played."""

    def carry_out(self, job: Job) -> Task[None]:
        """Execute a job; what it asks of a reply is made by `advance`. A failure is a TurnFailed."""
        try:
            if isinstance(job, TurnJob):
                yield from self._execute(job)
            elif isinstance(job, UseFlowSteps):
                self._use_flow_steps(job.steps)
            elif not isinstance(job, Load):
                yield from self._history.change(job)
                if isinstance(job, Remove):
                    self._earlier.pop(job.turn_id, None)
                elif not isinstance(job, Remember):
                    self._earlier.clear()
        except Exception as error:
            self._drop(job.turn_id if isinstance(job, TurnJob | Remove | Remember) else 0, error)

    def advance(self) -> Task[bool]:
        """Make the next event of the reply; returns whether there is more to make now. If not, the history is
        published, unless the reply is speculative."""
        try:
            if self._run is not None and (yield from self._run.step(self._give)):
                return True
        except Exception as error:
            self._drop(self._turn.turn_id if self._turn is not None else 0, error)
        if self._run is None or not self._run.is_speculative:
            self._history.publish()
        return False

    @property
    def flow_steps(self) -> FlowSteps:
        """Those from the next turn on."""
        return FlowSteps(self._engine.flow_steps, self._engine.bundle.flow.steps)

    def _use_flow_steps(self, steps: int | None) -> None:
        try:
            self._engine.use_flow_steps(steps)
        except MossVoiceError as error:
            self._give(FlowStepsSet(self.flow_steps, error.problem))
        else:
            self._give(FlowStepsSet(self.flow_steps))

    def _execute(self, job: TurnJob) -> Task[None]:
        if isinstance(job, OpenTurn):
            yield from self._open(job)
            return
        turn = self._turn
        if turn is None or turn.turn_id != job.turn_id:
            if isinstance(job, Interrupt) and (earlier := self._earlier.get(job.turn_id)) is not None:
                earlier.truncate(job.samples_played, job.characters_shown)
            return
        if isinstance(job, Cancel):
            self._turn = self._run = None
            turn.cancel()
        elif isinstance(job, Interrupt):
            self._turn = None
            turn.truncate(job.samples_played, job.characters_shown)
            if self._run is not None and self._run.is_speculative:
                self._end_run(self._run.scope)
            self._run = None
        elif self._scope.is_cancelled or job.turn_id == self._failed_turn:
            return
        elif isinstance(job, Hear):
            codes = yield from turn.push(job.pcm)
            if codes:
                self._give(Heard(job.turn_id, codes))
        elif isinstance(job, Ask):
            yield from turn.push_text(job.text)
        elif isinstance(job, AskAgain):
            yield from self._history.ask_again(turn, job)
        elif isinstance(job, Reopen):
            turn.reopen()
            self._end_run(job.scope)
        elif isinstance(job, Commit):
            yield from self._commit(turn, job)
        elif self._run is not None:
            self._run.is_speculative = False

    def _open(self, job: OpenTurn) -> Task[None]:
        if job.scope.is_cancelled:
            return
        self._run = None
        opening = self._engine.open_turn(self._history.conversation, job.turn_id, job.reply)
        self._turn = yield from opening
        self._scope = job.scope
        self._earlier[job.turn_id] = self._turn
        if len(self._earlier) > KEPT_TURNS:
            del self._earlier[next(iter(self._earlier))]

    def _commit(self, turn: Turn, job: Commit) -> Task[None]:
        lm = self._engine.bundle.lm
        params = lm.sampling_text if job.reply is Modality.TEXT else lm.sampling_speech
        if job.seed is not None:
            params = replace(params, seed=job.seed)
        if job.max_new is not None:
            params = replace(params, max_new=min(job.max_new, params.max_new))
        if lm.detects_turn_end:
            # The prediction says whether to answer; who is answered gets a word.
            params = replace(params, min_new=max(params.min_new, _ANSWER_ROWS))
        timing = job.timings or self._engine.timing
        kept = KeptTimings(timing) if job.reports_stages else None
        events = yield from turn.commit(job.reply, params, scope=job.scope, timing=kept or timing)
        self._run = ReplyRun(
            job.scope,
            events,
            is_speculative=job.timings is not None,
            finished=job.finished,
            kept=kept,
            clock_ns=self._engine.timing.clock_ns,
        )
        self._history.note_question(turn)

    def _end_run(self, scope: CancelScope) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.close()
        self._give(RolledBack(scope, run.work_ns if run else 0, self._engine.timing.clock_ns()))

    def _drop(self, turn_id: int, error: Exception) -> None:
        self._failed_turn = turn_id
        self._run = None
        if self._turn is not None:
            with contextlib.suppress(Exception):
                self._turn.cancel()
            if self._turn.turn_id != turn_id:
                self._turn = None
        if isinstance(error, MossVoiceError):
            self._give(TurnFailed(turn_id, error.problem, error.code))
            return
        _log.error("the engine failed", exc_info=error)
        self._give(
            TurnFailed(
                turn_id,
                Problem(
                    "The engine failed with an unexpected {kind}: {error}.",
                    "Ask again; if it happens again, see the log file for details.",
                    kind=type(error).__name__,
                    error=error,
                ),
            )
        )
