"""A language model that answers by a function of the conversation, in place of a network.

The real engine runs it: prompt, KV blocks, prefix cache, sampling and codec are those of the product. It
keeps the id of each position where a network would keep keys and values, so that it answers what is in the
context and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.lm.step import (
    BatchCheck,
    ExecutorLimits,
    ReplySampling,
    ScheduledBatch,
    ScheduledSequence,
    StepOutput,
)
from tests.doubles.scripted_lm import one_hot, with_executor

_LEAST_CODES = 12
"""A spoken reply is at least as long as this; it has a code for each token of its transcript."""


@dataclass(frozen=True)
class ContextTurn:
    """A turn of the context, with speech as <speech>."""

    role: str
    text: str


@dataclass(frozen=True)
class Answer:
    """What the model says, and what it then writes in its text channel."""

    said: str
    written: str = ""


class AnsweringExecutor:
    """Each reply is `answer` of the turns before it."""

    supports_deferred_tails = True
    can_sample = False
    requires_block_aligned_prefill = False

    def __init__(
        self, bundle: Bundle, limits: ExecutorLimits, answer: Callable[[list[ContextTurn]], Answer]
    ) -> None:
        self.limits = limits
        self.device = torch.device("cpu")
        self._special, self._answer = bundle.lm.special_ids, answer
        self._tokenizer: Tokenizer = Tokenizer.from_file(str(bundle.text_tokenizer))
        self._check = BatchCheck(limits, can_sample=False)
        self._ids: dict[tuple[int, int], int] = {}
        """Merged ids by block and place in it."""

    def execute(self, batch: ScheduledBatch) -> list[StepOutput]:
        self._check(batch)
        return [self._step(scheduled) for scheduled in batch.sequences]

    def is_in_flight(self, reply: ReplySampling) -> bool:
        return False

    def close(self) -> None: ...

    def _step(self, scheduled: ScheduledSequence) -> StepOutput:
        size, table = self.limits.tokens_per_block, scheduled.block_table
        for position, token_id in enumerate(scheduled.token_ids, start=scheduled.first_position):
            self._ids[table[position // size], position % size] = token_id
        context = [self._ids[table[place // size], place % size] for place in range(scheduled.num_tokens)]
        text, audio = self._next(context)
        tails = scheduled.tails
        return StepOutput(
            one_hot(text, self.limits.text_vocab) if tails.text else None,
            one_hot(audio, self.limits.audio_vocab) if tails.audio else None,
        )

    def _next(self, context: list[int]) -> tuple[int, int]:
        """Text id and audio id after the context; the end where it is not the model's turn."""
        special = self._special
        starts = [place for place, token_id in enumerate(context) if token_id == special.im_start]
        turns = [context[start + 1 : end] for start, end in zip(starts, [*starts[1:], None], strict=True)]
        opening = self._encode("assistant\n")
        if not turns or turns[-1][: len(opening)] != opening:
            return special.im_end, special.eosp
        answer = self._answer([self._read(turn) for turn in turns[:-1]])
        begun = turns[-1][len(opening) :]
        if begun[:1] == [special.sosp]:
            codes = [token_id - self.limits.text_vocab for token_id in begun[1:]]
            if special.eosp not in codes:
                return self._speak(answer.said, len(codes))
            begun, said = begun[2 + codes.index(special.eosp) :], ""
        else:
            said = answer.said
        done = self._decode(begun)
        if done and answer.written.startswith(done):
            said = ""  # it was made to begin with the call
        text, is_said = (said + answer.written).removeprefix(done), len(done) < len(said)
        if is_said:
            text = said.removeprefix(done)
        return (self._encode(text, is_plain=is_said)[0] if text else special.im_end), special.audio_pad

    def _speak(self, said: str, spoken: int) -> tuple[int, int]:
        subtitles, special = self._encode(said, is_plain=True), self._special
        if spoken >= (max(len(subtitles), _LEAST_CODES) if said else 0):
            return special.im_end, special.eosp
        empty = special.im_end if special.empty is None else special.empty
        return (subtitles[spoken] if spoken < len(subtitles) else empty), spoken % special.eosp

    def _read(self, turn: list[int]) -> ContextTurn:
        role, _, text = self._decode(turn).partition("\n")
        return ContextTurn(role, text.strip())

    def _encode(self, text: str, *, is_plain: bool = False) -> list[int]:
        """Ids of a text; if it `is_plain`, what looks like an added token is none."""
        self._tokenizer.encode_special_tokens = is_plain
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def _decode(self, ids: list[int]) -> str:
        known = [token_id for token_id in ids if token_id < self.limits.text_vocab]
        known = [token_id for token_id in known if token_id not in (self._special.im_end, self._special.sosp)]
        text: str = self._tokenizer.decode(known, skip_special_tokens=False)
        return text if self._special.sosp not in ids else f"{text.rstrip()}\n<speech>"


def answering(engine: Engine, answer: Callable[[list[ContextTurn]], Answer]) -> Engine:
    """The engine with this language model and a pool of its own; codec and prompt stay."""
    limits = engine.stages.lm.executor.limits
    return with_executor(engine, AnsweringExecutor(engine.bundle, limits, answer))
