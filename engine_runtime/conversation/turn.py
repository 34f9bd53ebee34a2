"""Conversation and Turn: the history, and one user turn with its reply, from the first speech to the last
sample.

The history consists of tokens and is independent of the KV cache: after a cancel, an error, a change of
modality or an eviction, `Sequence` is aligned to these tokens again and only the difference is prefilled.

In: PCM (or typed text) as it arrives, then a commit. Out: reply events. While the user speaks, new codes are
prefilled at once, so that only the few closing tokens of the turn remain at the commit. Codes may change
until then (user_input.py); tokens are prefilled again from the first difference.

States: listening -> replying -> done, from any of them to cancelled; `reopen` leads back to listening. Engine
thread. Another thread stops a reply by the cancel scope of its commit, after the current decode step at the
latest.

Policies:
    A turn cancelled while listening leaves no trace in the history. An interrupted reply stays in the history
    up to the point that was heard: `truncate` sets that point, also for a complete reply; `cancel` assumes
    that everything delivered was heard. If nothing was heard, the exchange is removed. After an error the
    turn is dropped and the conversation is restored to its state before the turn, unless `truncate` reports
    that part of the reply was heard. Only after a ToolCallError, which may have come of an unfinished
    question, the turn remains, without its reply, to be reopened or cancelled.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import chain, islice
from statistics import median_low

import torch

from engine_runtime.bundle.tools import NO_TOOLS, ToolUse
from engine_runtime.conversation.context_window import RETENTION, num_dropped, reply_reserve
from engine_runtime.conversation.history import Exchange, Question
from engine_runtime.conversation.reply import Reply, prefill
from engine_runtime.conversation.reply_events import ReplyEvents
from engine_runtime.conversation.reply_tokens import ReplyPosition, ReplyTokens
from engine_runtime.conversation.user_input import UserInput
from engine_runtime.cuda.gpu_memory import too_little_memory
from engine_runtime.errors import ToolCallError
from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.chat_template import Prompt
from engine_runtime.lm.generation import Token
from engine_runtime.lm.sampler import reply_seed
from engine_runtime.lm.step import BOTH_TAILS
from engine_runtime.loading import Stages
from engine_runtime.thread_owner import ThreadOwner
from engine_runtime.timing import TimingBus
from engine_runtime.types import CancelScope, Modality, Pcm, ReplyDone, ReplyEvent, SamplingParams
from engine_runtime.work import Result, Task, within

SPOKEN_TURNS = 3
"""Number of latest spoken turns used to estimate the level of the next one."""


@dataclass(eq=False)
class Conversation:
    """One conversation. Created by `Engine.new_conversation`.

    Attributes:
        exchanges: all exchanges, oldest first; an interrupted reply up to the point that was heard.
        num_forgotten: number of the oldest exchanges dropped from the model's context
            (conversation/context_window.py).
        sequence: the tokens that the KV cache holds.
        turn: the latest turn.
        seed: seed of the replies where no other is given.
        num_commits: replies requested so far, without those reverted by a reopen.
        instructions: what the system turn says beside the modality of the replies.
        retention: as in conversation/context_window.py.
        tools: those that replies may call.
    """

    prompt: Prompt
    limit: int
    exchanges: list[Exchange] = field(default_factory=list)
    num_forgotten: int = 0
    modality: Modality = Modality.SPEECH
    sequence: Sequence = field(default_factory=Sequence)
    turn: Turn | None = None
    seed: int = field(default_factory=lambda: secrets.randbits(63))
    num_commits: int = 0
    instructions: str = ""
    retention: float | None = RETENTION
    tools: ToolUse = NO_TOOLS

    def next_draws(self, params: SamplingParams) -> SamplingParams:
        """The sampling parameters of the next reply, with a seed of its own."""
        self.num_commits += 1
        seed = self.seed if params.seed is None else params.seed
        return replace(params, seed=reply_seed(seed, self.num_commits))

    def return_draws(self) -> None:
        """The latest reply was reverted: the next one gets its seed."""
        self.num_commits -= 1

    def history(self) -> list[Token]:
        """Tokens of the system turn and of the kept exchanges."""
        kept = self.exchanges[self.num_forgotten :]
        said = chain.from_iterable((*exchange.user, *exchange.reply) for exchange in kept)
        return [*self._system(), *said]

    def plan(self, current: list[Token], reserve: int) -> list[Token]:
        """All tokens that the model should see, with `current` (the user's turn so far) at the end.

        Drops the oldest exchanges if fewer than `reserve` tokens would remain for the rest of the turn and
        its reply. Raises ContextLengthError, having dropped nothing, if `current` does not fit at all.
        """
        kept = [exchange.num_tokens for exchange in self.exchanges[self.num_forgotten :]]
        system_tokens = len(self._system())
        self.num_forgotten += num_dropped(
            system_tokens, kept, len(current), reserve, self.limit, self.retention
        )
        return [*self.history(), *current]

    def _system(self) -> list[Token]:
        return self.prompt.system(self.modality, self.instructions, self.tools)

    def replace(self, old: Exchange | None, new: Exchange | None) -> None:
        """Replace `old` by `new`. None for `old` appends `new`, None for `new` removes `old`."""
        if old is None:
            self.exchanges += [] if new is None else [new]
            return
        place = next(index for index, exchange in enumerate(self.exchanges) if exchange is old)
        self.exchanges[place : place + 1] = [] if new is None else [new]
        if new is None and place < self.num_forgotten:
            self.num_forgotten -= 1

    def insert(self, exchange: Exchange, before: int | None) -> None:
        """Add an exchange before that of the turn `before`; at the end for None or a turn that has none."""
        places = (place for place, known in enumerate(self.exchanges) if known.turn_id == before)
        place = next(places, len(self.exchanges))
        self.exchanges.insert(place, exchange)
        if place < self.num_forgotten:
            self.num_forgotten += 1

    def remove(self, turn_ids: range) -> None:
        """Remove the exchanges of these turns, as if they had never existed."""
        for exchange in [known for known in self.exchanges if known.turn_id in turn_ids]:
            self.replace(exchange, None)

    @property
    def expected_maximum(self) -> float | None:
        """Estimate of `speech_maximum` of the next spoken turn: the (lower) median of the latest spoken
        turns, so that one loud noise, such as a slammed door, has no effect. Kept per conversation, since it
        depends on the user's level."""
        maxima = (exchange.speech_maximum for exchange in reversed(self.exchanges))
        latest = [*islice((maximum for maximum in maxima if maximum is not None), SPOKEN_TURNS)]
        return median_low(latest) if latest else None

    @property
    def is_resting(self) -> bool:
        """Whether no turn is in progress, so that its KV blocks can be evicted."""
        return self.turn is None or self.turn.is_over


class _State(Enum):
    LISTENING = "listening"
    REPLYING = "replying"
    DONE = "done"
    CANCELLED = "cancelled"


class Turn:
    """Created by `Engine.open_turn`."""

    def __init__(
        self,
        stages: Stages,
        owner: ThreadOwner,
        conversation: Conversation,
        turn_id: int,
        reply: Modality,
        timing: TimingBus,
    ) -> None:
        self.turn_id = turn_id
        self._stages, self._owner, self._conversation = stages, owner, conversation
        self._timing = timing
        self._state = _State.LISTENING
        self._is_stop_wanted = False
        """Whether the turn was cancelled or its reply truncated."""
        self._commit = CancelScope()
        """Scope of the latest commit. `reopen` cancels it and the events end; `cancel` does not, because a
        cancelled reply still ends with a ReplyDone."""
        self._input = UserInput(stages, timing, turn_id)
        self._reply: Reply | None = None
        self._tokens: ReplyTokens | None = None
        """The tokens of the reply, kept after it ended; None until it begins."""
        self._heard: ReplyPosition | None = None
        """Position up to which the reply was heard, set by the latest `truncate`."""
        self._cut_at: ReplyPosition | None = None
        """The position that was applied last."""
        self._exchange: Exchange | None = None
        self._is_working = False
        """Whether an operation has begun and perhaps waits for work; a stop takes effect after it."""
        conversation.modality = reply

    def open(self) -> Task[None]:
        """Start to listen: prefill what comes before the user's speech. Errors as in `push`."""
        return self._operation(self._open())

    def _open(self) -> Task[None]:
        self._input.open(self._conversation.expected_maximum)
        yield from self._prefill_open_turn()

    @property
    def _is_stopped(self) -> bool:
        """Whether a cancel came before the reply was complete, or a truncate at any time."""
        return self._heard is not None or (self._is_stop_wanted and self._state is not _State.DONE)

    @property
    def is_over(self) -> bool:
        """Whether the turn is done or cancelled."""
        return self._state in (_State.DONE, _State.CANCELLED)

    @property
    def is_replying(self) -> bool:
        """Whether it is committed, and its reply is not complete."""
        return self._state is _State.REPLYING

    def push(self, pcm: Pcm) -> Task[int]:
        """Encode and prefill more speech [n] at the engine's input rate; returns the number of new codes.

        Raises AudioInputError, ContextLengthError, OutOfBlocksError or ExecutorError; the turn is dropped
        then. Returns 0 once the turn was cancelled.
        """
        if not self._can("take speech"):
            return 0
        return (yield from self._operation(self._push(pcm)))

    def _push(self, pcm: Pcm) -> Task[int]:
        if num_new := (yield from self._input.push(pcm)):
            yield from self._prefill_open_turn()
        return num_new

    def push_text(self, text: str) -> Task[None]:
        """A typed question, or a text before or after speech. Errors as in `push`."""
        if not self._can("take text"):
            return
        yield from self._operation(self._push_text(text))

    def _push_text(self, text: str) -> Task[None]:
        yield from self._input.type(text)
        yield from self._prefill_open_turn()

    def push_question(self, question: Question) -> Task[int]:
        """Use the question of an earlier turn instead of speech; returns the number of its codes. Errors as
        in `push`."""
        if not self._can("take a question"):
            return 0
        return (yield from self._operation(self._push_question(question)))

    def _push_question(self, question: Question) -> Task[int]:
        self._input.ask_again(question)
        yield from self._prefill_open_turn()
        pad = self._stages.bundle.lm.special_ids.modality_pad
        return sum(token.text == pad for token in question.user)

    @property
    def question(self) -> Question:
        """The user's turn, complete after the commit."""
        return self._input.question

    def commit(
        self,
        reply: Modality,
        params: SamplingParams | None = None,
        *,
        scope: CancelScope | None = None,
        timing: TimingBus | None = None,
    ) -> Task[ReplyEvents]:
        """End the user's turn; returns an iterator over the events of the reply, ending with a ReplyDone.

        Each commit of the conversation has its own sampling seed, unless it was reverted by `reopen`.
        `params` default to the bundle's for this modality; `timing` takes the durations of the reply instead
        of the engine's bus. The iterator ends at once after `reopen`, and after the current step once `scope`
        is cancelled; after `cancel` it yields a ReplyDone with "cancelled". Raises AudioInputError if the
        user's turn is empty.
        """
        timing = timing or self._timing
        committed_ns = timing.clock_ns()
        if params is None:
            lm = self._stages.bundle.lm
            params = lm.sampling_speech if reply is Modality.SPEECH else lm.sampling_text
        if self._can("be committed"):
            timing.emit("commit", self.turn_id, committed_ns, 0)
            params = yield from self._operation(self._end_input(params, scope))
        advance = partial(self._advance, self._commit, reply, params, timing, committed_ns)
        return ReplyEvents(self._commit, advance, self._deliver)

    def _end_input(self, params: SamplingParams, scope: CancelScope | None) -> Task[SamplingParams]:
        yield from self._input.end()
        self._state = _State.REPLYING
        self._commit = CancelScope(scope)
        self._reply = self._tokens = None
        return self._conversation.next_draws(params)

    def reopen(self) -> None:
        """The user continues to speak: revert the commit and its reply, keep the encoded speech.

        Does nothing while listening or after a cancel.
        """
        if self._is_cancelled() or self._state is _State.LISTENING:
            return
        conversation = self._conversation
        if conversation.turn is not self:
            raise RuntimeError("a later turn was opened; only the latest one can be reopened")
        conversation.replace(self._exchange, None)
        conversation.return_draws()
        self._commit.cancel()
        self._stop_reply()
        self._reply = self._tokens = self._exchange = None
        self._state = _State.LISTENING
        tokens = [*conversation.history(), *self._input.tokens()]
        self._stages.sequences.roll_back(conversation.sequence, tokens)

    def cancel(self) -> None:
        """Drop the turn, or stop its reply, and free its KV blocks: at once, or after the operation in
        progress. A turn that is done does not change."""
        if self._state is _State.DONE and self._heard is None:
            return
        self._stop()

    def truncate(self, samples_played: int, characters_shown: int = 0) -> None:
        """Stop the reply, complete or not, and keep the part that was heard: the codes whose audio had
        started after `samples_played` samples, or the `characters_shown` of a text reply.

        Text and KV cache are truncated at the same token. A later call can only shorten the reply further;
        while listening it acts as `cancel`.
        """
        self._heard = ReplyPosition(samples_played, characters_shown)
        self._stop()

    def _stop(self) -> None:
        self._is_stop_wanted = True
        if not self._is_working:
            self._is_cancelled()

    def _advance(
        self,
        commit: CancelScope,
        modality: Modality,
        params: SamplingParams,
        timing: TimingBus,
        committed_ns: int,
    ) -> Task[list[ReplyEvent]]:
        """The next events of the reply; none after the commit was reverted."""
        if commit.is_cancelled:
            return []
        if self._is_cancelled():
            return [self._cancelled_done(modality)]
        return (yield from self._operation(self._generate(modality, params, timing, committed_ns)))

    def _generate(
        self, modality: Modality, params: SamplingParams, timing: TimingBus, committed_ns: int
    ) -> Task[list[ReplyEvent]]:
        if self._reply is None:
            self._reply = self._new_reply(modality, params, timing, committed_ns)
        reply = self._reply
        self._tokens = reply.tokens
        events = yield from reply.advance()
        if reply.finish_reason is not None:
            self._finish(reply)
        return events

    def _deliver(self, event: ReplyEvent) -> bool:
        """Whether an event is delivered; none but the last after the reply was stopped."""
        if self._is_stopped and not isinstance(event, ReplyDone):
            return False
        if self._reply is not None:
            self._reply.note_given(event)
        return True

    def _new_reply(
        self, modality: Modality, params: SamplingParams, timing: TimingBus, committed_ns: int
    ) -> Reply:
        """Close the user's turn and create its reply, whose first step prefills the closing tokens."""
        conversation, stages = self._conversation, self._stages
        conversation.modality = modality
        opening, begun = stages.prompt.open_reply(modality), None
        if conversation.tools.is_required:
            begun = stages.prompt.begin_call(conversation.tools)
            opening = [*stages.prompt.open_reply(Modality.TEXT), *begun.tokens]
        current = [*self.question.user, *opening]
        reserve = reply_reserve(params.max_new, conversation.limit)
        prompt = conversation.plan(current, reserve)
        return Reply(
            stages=stages,
            timing=timing,
            turn_id=self.turn_id,
            modality=modality,
            params=params,
            prompt=prompt,
            sequence=conversation.sequence,
            limit=conversation.limit,
            committed_ns=committed_ns,
            tools=conversation.tools,
            begun=begun,
        )

    def _prefill_open_turn(self) -> Task[None]:
        """Prefill the user's turn so far."""
        conversation = self._conversation
        tokens = conversation.plan(self._input.tokens(), self._default_reserve(conversation.modality))
        yield from prefill(
            self._stages,
            conversation.sequence,
            tokens,
            BOTH_TAILS,
            self._timing,
            self.turn_id,
            phase="listen",
        )

    def _default_reserve(self, modality: Modality) -> int:
        """Tokens to reserve while listening: the end of the turn, and the reply."""
        lm, prompt = self._stages.bundle.lm, self._stages.prompt
        params = lm.sampling_speech if modality is Modality.SPEECH else lm.sampling_text
        closing = len(prompt.end_speech()) + len(prompt.end_turn()) + len(prompt.open_reply(modality))
        return closing + reply_reserve(params.max_new, self._conversation.limit)

    def _finish(self, reply: Reply) -> None:
        """Add the complete reply to the history."""
        self._remember(reply.tokens)
        self._reply, self._state = None, _State.DONE

    def _remember(self, tokens: ReplyTokens) -> None:
        """Store the exchange with this reply in the history."""
        reply = tokens.as_turn(self._stages.prompt)
        text = tokens.text.strip()
        question = self.question
        self._replace_exchange(
            Exchange(question.user, tuple(reply), text, question.speech_maximum, self.turn_id)
        )

    def _replace_exchange(self, exchange: Exchange | None) -> None:
        if self._exchange is None and self._conversation.turn is not self:
            return  # this turn failed, and a later one followed
        self._conversation.replace(self._exchange, exchange)
        self._exchange = exchange

    def _is_cancelled(self) -> bool:
        """Whether the turn is cancelled; performs a pending cancel."""
        assert self._owner.is_here
        if not self._is_stopped:
            return False
        heard = self._heard
        if self._state is _State.CANCELLED and heard in (None, self._cut_at):
            return True
        self._cut_at = heard
        if heard is None and self._reply is not None:
            heard = self._reply.given
        if self._tokens is not None and heard is not None:
            self._tokens = self._tokens.up_to(heard)
            if self._tokens.tokens:
                self._remember(self._tokens)
            else:
                self._replace_exchange(None)
        self._drop()
        return True

    def _drop(self) -> None:
        """Close the turn; its tokens that are not history leave the cache."""
        self._state = _State.CANCELLED
        self._is_stop_wanted = True
        self._stop_reply()
        if self._conversation.is_resting:  # otherwise a later turn aligns the cache
            conversation = self._conversation
            self._stages.sequences.roll_back(conversation.sequence, conversation.history())
        self._input.release()

    def _stop_reply(self) -> None:
        # NOTE: turn and reply form a reference cycle; without this only the garbage collector frees the
        # voice.
        if self._reply is not None:
            self._reply.stop()

    def close(self) -> None:
        """End the turn in any state, because another one begins; it cannot be reopened."""
        self.cancel()
        self._input.release()

    def _cancelled_done(self, modality: Modality) -> ReplyDone:
        if self._reply is None:
            return ReplyDone(self.turn_id, modality, "cancelled", "")
        return self._reply.done("cancelled")

    def _require(self, state: _State, action: str) -> None:
        if self._state is not state:
            raise RuntimeError(f"turn {self.turn_id} is {self._state.value} and cannot {action}")

    def _can(self, action: str) -> bool:
        """Whether the turn listens; False if it is cancelled, else RuntimeError."""
        if self._is_cancelled():
            return False
        self._require(_State.LISTENING, action)
        return True

    def _operation(self, task: Task[Result]) -> Task[Result]:
        """Run one operation. A cancel takes effect afterwards."""
        self._is_working = True
        try:
            result = yield from within(self._dropping_failed, task)
        finally:
            self._is_working = False
        if self._state is _State.LISTENING:
            self._is_cancelled()
        return result

    @contextmanager
    def _dropping_failed(self) -> Iterator[None]:
        """If the operation fails, the turn is dropped and the conversation is restored."""
        try:
            self._stages.cpu_threads.adapt()
            yield
        except torch.OutOfMemoryError as error:
            self._drop()
            raise too_little_memory(error, self._stages.bundle.lm, self._stages.options) from None
        except ToolCallError:
            self._stop_reply()
            self._reply = None
            raise
        except BaseException:
            self._drop()
            raise
