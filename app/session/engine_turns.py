"""The turns of one conversation in the engine: carries out jobs, makes the reply one event after the other.

In: jobs about turns and about the history. Out: results. It owns neither a queue nor a thread: the
`EngineHost` runs the tasks of one or several conversations. Until it is confirmed, a speculative reply is
made only as far as playback would buffer it, so that little work is discarded: nothing beyond the prediction
where that is that the user has not finished. Engine thread.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from app.session.engine_jobs import (
    HELD_DELTAS,
    HELD_S,
    Ask,
    AskAgain,
    Cancel,
    Commit,
    Confirm,
    FlowSteps,
    FlowStepsSet,
    Forget,
    Hear,
    Heard,
    HistoryChanged,
    Interrupt,
    Job,
    Load,
    OpenTurn,
    Remember,
    Remove,
    Reopen,
    ReplyMade,
    ReplyResult,
    Restore,
    Restored,
    RestoreFailed,
    Result,
    RolledBack,
    TurnFailed,
    UseContext,
    UseFlowSteps,
)
from engine_runtime.errors import MossVoiceError, Problem, ToolCallError
from engine_runtime.timing import TimingBus, TimingEvent
from engine_runtime.types import (
    CancelScope,
    Modality,
    ReplyAudio,
    ReplyDone,
    ReplyEvent,
    ReplyText,
    TurnEndPrediction,
)
from engine_runtime.work import Task

if TYPE_CHECKING:  # they import torch
    from engine_runtime.conversation.history import Question
    from engine_runtime.conversation.reply_events import ReplyEvents
    from engine_runtime.conversation.snapshot import ConversationSnapshot
    from engine_runtime.conversation.turn import Turn
    from engine_runtime.engine import Engine

_log = logging.getLogger(__name__)
_ANSWER_ROWS = 2
"""Tokens of the shortest reply that is not empty: a word or a code, and its end."""
KEPT_TURNS = 4
"""Latest turns whose reply can still be cut at what was heard: a client may report that late."""
MOST_KEPT_TIMINGS = 1024

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
        """Execute a job; the events of a reply are made by `advance`. A failure is a TurnFailed."""
        try:
            if isinstance(job, TurnJob):
                yield from self._execute(job)
            elif isinstance(job, UseFlowSteps):
                self._use_flow_steps(job.steps)
            elif isinstance(job, UseContext):
                conversation = self._history.conversation
                conversation.instructions, conversation.retention = job.instructions, job.retention
                conversation.tools = job.tools
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
        """Euler steps of the flow from the next turn on."""
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
            # The prediction decides whether to answer; an answer must not be empty.
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


class ReplyRun:
    """One commit, and the events of its reply on their way to the dialog thread."""

    def __init__(
        self,
        scope: CancelScope,
        events: ReplyEvents,
        *,
        is_speculative: bool,
        finished: float = 0.0,
        kept: KeptTimings | None = None,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """`finished` is the least prediction with which a speculative reply is worth making; `kept` has the
        timings that belong to the result."""
        self.is_speculative = is_speculative
        """Set to False when the reply is confirmed."""
        self.work_ns = 0
        """Time spent on the reply, with the time in which others had the device."""
        self.scope = scope
        self._events = events
        self._clock_ns = clock_ns
        self._audio_s = 0.0
        self._deltas = 0
        self._finished = finished
        self._kept = kept
        self._is_unfinished = False
        self._failure: ToolCallError | None = None
        """Why a speculative reply cannot be given. It may be that the user has not finished."""

    def step(self, give: Callable[[Result], None]) -> Task[bool]:
        """Make the next event, as a task; returns whether there is more to make now: False at the end, and as
        far as a speculative reply goes."""
        if self._is_enough:
            return False
        if self._failure is not None:
            raise self._failure
        began_ns = self._clock_ns()
        try:
            event = yield from self._events.next_event()
        except ToolCallError as error:
            if not self.is_speculative:
                raise
            self._failure = error
            return False
        finally:
            self.work_ns += self._clock_ns() - began_ns
        if event is None or self.scope.is_cancelled:
            self._events.close()
            return False
        self._count(event)
        give(ReplyResult(self.scope, event))
        if isinstance(event, ReplyDone) and self._audio_s:
            stages = () if self._kept is None else self._kept.events
            give(ReplyMade(self.work_ns / 1e9 / self._audio_s, stages))
        return not self._is_enough

    def close(self) -> None:
        """Stop making events: the reply is no longer wanted."""
        self._events.close()

    @property
    def _is_enough(self) -> bool:
        if not self.is_speculative:
            return False
        if self._failure is not None:
            return True
        return self._is_unfinished or self._audio_s >= HELD_S or self._deltas >= HELD_DELTAS

    def _count(self, event: ReplyEvent) -> None:
        if isinstance(event, ReplyAudio):
            self._audio_s += len(event.pcm) / event.sample_rate
        elif isinstance(event, ReplyText):
            self._deltas += 1
        elif isinstance(event, TurnEndPrediction):
            self._is_unfinished = event.probability < self._finished


class KeptTimings(TimingBus):
    """A bus that passes its events on, and keeps the first of them."""

    def __init__(self, target: TimingBus) -> None:
        super().__init__(target.clock_ns)
        self._target = target
        self._events: list[TimingEvent] = []
        self.subscribe(self._take)

    @property
    def events(self) -> tuple[TimingEvent, ...]:
        """The events kept so far."""
        return tuple(self._events)

    def _take(self, event: TimingEvent) -> None:
        self._target.publish(event)
        if len(self._events) < MOST_KEPT_TIMINGS:
            self._events.append(event)


class ForgottenQuestionError(MossVoiceError):
    """The question to be asked again is unknown."""


class EngineHistory:
    """One conversation of one engine: begun, continued, shortened; published when it has changed."""

    def __init__(self, engine: Engine, give: Callable[[Result], None]) -> None:
        self.conversation = engine.new_conversation()
        self.engine = engine
        self._give = give
        self._questions: dict[int, Question] = {}
        """The questions of all committed turns by turn id, also where the reply was not heard."""
        self._published: ConversationSnapshot | None = None

    def change(self, job: Forget | Remove | Remember | Restore) -> Task[None]:
        """Execute a job that concerns no turn in progress."""
        if isinstance(job, Remove):
            self._remove(range(job.turn_id, job.turn_id + 1))
        elif isinstance(job, Forget):
            self.engine.end_conversation(self.conversation)
            self.conversation = self.engine.new_conversation()
            self._questions.clear()
        elif isinstance(job, Remember):
            remembering = self.engine.remember(
                self.conversation, job.turn_id, job.question, job.reply, job.before
            )
            self._questions[job.turn_id] = yield from remembering
        else:
            self._restore(job)

    def continue_from(self, earlier: ConversationSnapshot | None) -> bool:
        """Continue the conversation of another engine; False if the model is another one, and a new
        conversation has begun. One without exchanges is nothing to continue."""
        if earlier is None or not earlier.exchanges:
            return True
        try:
            self._adopt(earlier)
        except MossVoiceError:
            return False
        return True

    def close(self) -> None:
        """End the conversation."""
        self.engine.end_conversation(self.conversation)

    def note_question(self, turn: Turn) -> None:
        """The turn was committed."""
        self._questions[turn.turn_id] = turn.question

    def ask_again(self, turn: Turn, job: AskAgain) -> Task[None]:
        """Give the question of an earlier turn to `turn`, and cut the history back to before it unless the
        job keeps that."""
        question = self._questions.get(job.earlier_id)
        if question is None:
            raise ForgottenQuestionError("That question is no longer remembered.", "Ask it again.")
        if not job.keeps:
            self._remove(range(job.earlier_id, turn.turn_id))
        if codes := (yield from turn.push_question(question)):
            self._give(Heard(turn.turn_id, codes))

    @property
    def snapshot(self) -> ConversationSnapshot:
        """The history as it is now. It shares the tokens, so this is cheap."""
        return self.engine.snapshot(self.conversation)

    def publish(self) -> None:
        """Publish the history if it changed."""
        snapshot = self.snapshot
        if snapshot != self._published:
            self._published = snapshot
            self._give(HistoryChanged(snapshot))

    def _remove(self, turn_ids: range) -> None:
        self.engine.remove(self.conversation, turn_ids)
        for turn_id in turn_ids:
            self._questions.pop(turn_id, None)

    def _restore(self, job: Restore) -> None:
        from engine_runtime.conversation.snapshot import ConversationSnapshot

        try:
            self._adopt(ConversationSnapshot.of(job.history))
        except MossVoiceError as error:
            self._give(RestoreFailed(error.problem))
            return
        self.publish()
        self._give(Restored())

    def _adopt(self, snapshot: ConversationSnapshot) -> None:
        """Continue the conversation of a snapshot instead of the present one. Raises MossVoiceError."""
        from engine_runtime.conversation.history import Question

        restored = self.engine.restore(snapshot)
        self.engine.end_conversation(self.conversation)
        self.conversation = restored
        known = self.engine.snapshot(restored).exchanges
        self._questions = {
            exchange.turn_id: Question(exchange.user, exchange.speech_maximum) for exchange in known
        }
