"""One forward step as plain values, what is scheduled and what comes back, and the executor that runs it.

In: the tokens that a PagedLM scheduled, one entry per sequence, each with what an executor needs to sample
the next ids itself. Out: a `StepOutput` per sequence; K/V of the new tokens are in the pool. Three executors
implement `Executor`: executors/torch (the reference), executors/cuda and tensorrt/llm. lm/generation.py
decides which ids are allowed and which channel is active.

`BatchCheck` and `check_logits` are the validation that every executor shares: a step that would read or
overwrite other positions is refused, and so is a result that cannot be one. Engine thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine_runtime.errors import ExecutorError
from engine_runtime.types import SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class ReplySampling:
    """What stays the same for all steps of a reply; an executor copies it at the first of them.

    Attributes:
        params: `can_sample_on_device` checks which ones an executor must support.
        audio_banned_from, eosp: first of the audio ids that are never sampled; the end-of-speech id.
        seen_text, seen_audio: ids subject to the repetition penalty so far. [vocab] bool
    """

    params: SamplingParams
    audio_banned_from: int
    eosp: int
    seen_text: Tensor
    seen_audio: Tensor


@dataclass(slots=True)
class SamplingMetadata:
    """What an executor needs to sample the ids of one token, by the rules of lm/sampler.py.

    Attributes:
        reply: the same object at every step of one reply.
        draw_text, draw_audio: the uniform samples of this step, in [0, 1).
        last_text, last_audio: the ids of the token that is run, which are subject to the penalty from now on.
        bans_eosp: whether the end of speech is still banned.
        wants_subtitle: whether to return the most likely text id in addition to the sampled one.
    """

    reply: ReplySampling
    draw_text: float
    draw_audio: float
    last_text: int
    last_audio: int
    bans_eosp: bool
    wants_subtitle: bool


MAX_TOP_K = 64
"""Number of candidates that an executor samples from."""


def can_sample_on_device(params: SamplingParams) -> bool:
    """Whether an executor can sample with these parameters; otherwise the Sampler gets the logits."""
    return not params.do_sample or 0 < params.top_k <= MAX_TOP_K


@dataclass(slots=True)
class SampledIds:
    """Ids that an executor sampled; None for a skipped tail. `subtitle` only if requested."""

    text: int | None
    audio: int | None
    subtitle: int | None = None


MAX_JOINT_TOKENS = 16
"""New tokens of a sequence that is prefilled beside decode steps; longer prefills run alone."""


_MOST_TABLES = 1024
"""Block tables that a check remembers."""


@dataclass(frozen=True, slots=True)
class ExecutorLimits:
    """Size limits of a step; for an engine they are fixed at build time.

    `max_num_tokens` limits the new tokens of one sequence, `max_batch_size` the sequences of a step.
    """

    text_vocab: int
    audio_vocab: int
    num_layers: int
    num_blocks: int
    tokens_per_block: int
    max_seq_len: int
    max_num_tokens: int
    max_batch_size: int = 1

    @property
    def max_blocks(self) -> int:
        """Number of blocks of the longest sequence."""
        return -(-self.max_seq_len // self.tokens_per_block)


@dataclass(frozen=True, slots=True)
class Tails:
    """The tails whose logits a step must compute. A skipped tail is filled from kept trunk outputs when it is
    needed."""

    text: bool = True
    audio: bool = True


BOTH_TAILS = Tails()


@dataclass(slots=True)
class ScheduledSequence:
    """New tokens of one sequence.

    What is created for every token of a reply is not frozen: that would take two and a half times as long.

    Attributes:
        token_ids: merged ids of the new tokens, at least one.
        first_position: position of the first new token; all positions before it are in the cache.
        block_table: block i holds positions [i * tokens_per_block, (i + 1) * tokens_per_block); covers all.
        text_computed, audio_computed: positions whose K/V of that tail is written; a tail that is run first
            fills those from there to `first_position`.
        prompt_tokens: positions at the end of the last prefill.
        is_prefill: tokens of a prompt; otherwise a decode step of exactly one token.
        sampling: sample the next ids on the device in place of returning logits.
        wants_output: whether the output is read; otherwise an executor may leave it empty, and not wait.
        ahead: how the following token is sampled if this step samples a speech code that does not end the
            speech; the executor sets the code as its last audio id. An executor may launch that step before
            it is asked for, and before the ids of this one are known to the host; the block table covers its
            position.
    """

    token_ids: Sequence[int]
    first_position: int
    block_table: Sequence[int]
    text_computed: int
    audio_computed: int
    prompt_tokens: int
    is_prefill: bool
    tails: Tails = BOTH_TAILS
    sampling: SamplingMetadata | None = None
    wants_output: bool = True
    ahead: SamplingMetadata | None = None

    @property
    def num_tokens(self) -> int:
        """Positions of the sequence after the step."""
        return self.first_position + len(self.token_ids)

    @property
    def reserved_tokens(self) -> int:
        """Fewest positions that the block table covers, that of an overlapped step included."""
        return self.num_tokens + (self.ahead is not None)


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """The sequences of one step, at least one, in any order.

    `exclusive_gpu`: nothing else runs on the GPU, so that the step may occupy all of it.
    """

    sequences: tuple[ScheduledSequence, ...]
    exclusive_gpu: bool = False


@dataclass(slots=True)
class StepOutput:
    """Result at the last position of one sequence: logits, [text_vocab] and [audio_vocab] in float32, None
    for a skipped tail; or, where sampling was requested, the sampled ids alone."""

    text_logits: Tensor | None
    audio_logits: Tensor | None
    sampled: SampledIds | None = None


class BatchCheck:
    """Refuses a step that does not fit the pool, the model or the executor; the ExecutorError names the
    field. Remembers the block tables that it has checked, since few of them change from step to step."""

    def __init__(self, limits: ExecutorLimits, *, can_sample: bool) -> None:
        self._limits, self._can_sample = limits, can_sample
        self._tables: dict[int, tuple[list[int], NDArray[np.int64]]] = {}
        """Block tables that were checked, by the identity of the list: its content then, also as an array."""

    def __call__(self, batch: ScheduledBatch) -> None:
        """Check one step."""
        limits = self._limits
        if not 1 <= len(batch.sequences) <= limits.max_batch_size:
            raise ExecutorError(
                "sequences: this executor runs 1 to {max_batch_size} sequences per step, got {count}",
                max_batch_size=limits.max_batch_size,
                count=len(batch.sequences),
            )
        tables = []
        for scheduled in batch.sequences:
            _check_tokens(scheduled, limits)
            tables.append(self._checked_table(scheduled))
            if scheduled.sampling is not None and not self._can_sample:
                raise ExecutorError(
                    "sampling: this executor returns logits; sample from them with lm/sampler.py"
                )
        if len(tables) > 1:
            _check_written_blocks(batch, tables, limits)

    def _checked_table(self, scheduled: ScheduledSequence) -> NDArray[np.int64]:
        table, limits = scheduled.block_table, self._limits
        needed = -(-scheduled.reserved_tokens // limits.tokens_per_block)
        if not needed <= len(table) <= limits.max_blocks:
            raise ExecutorError(
                "block_table: {count} blocks for {reserved_tokens} tokens; expected {needed} to {max_blocks}",
                count=len(table),
                reserved_tokens=scheduled.reserved_tokens,
                needed=needed,
                max_blocks=limits.max_blocks,
            )
        known = self._tables.get(id(table))
        if known is not None and known[0] == table:
            return known[1]
        if min(table) < 0 or max(table) >= limits.num_blocks:
            raise ExecutorError(
                "block_table: {table}..{highest} leave the {num_blocks} blocks",
                table=min(table),
                highest=max(table),
                num_blocks=limits.num_blocks,
            )
        if len(set(table)) != len(table):
            raise ExecutorError(
                "block_table: a block is listed twice; K/V of different tokens would overwrite"
            )
        if len(self._tables) >= _MOST_TABLES:
            self._tables.clear()
        self._tables[id(table)] = list(table), np.array(table)
        return self._tables[id(table)][1]


def _check_tokens(scheduled: ScheduledSequence, limits: ExecutorLimits) -> None:
    ids, first = scheduled.token_ids, scheduled.first_position
    if not ids:
        raise ExecutorError("token_ids: a step needs at least one token")
    if not scheduled.is_prefill and len(ids) != 1:
        raise ExecutorError("token_ids: a decode step takes exactly 1 token, got {count}", count=len(ids))
    if len(ids) > limits.max_num_tokens:
        raise ExecutorError(
            "token_ids: {count} tokens exceed max_num_tokens {max_num_tokens}",
            count=len(ids),
            max_num_tokens=limits.max_num_tokens,
        )
    low, high = min(ids), max(ids)
    if low < 0 or high >= limits.text_vocab + limits.audio_vocab:
        raise ExecutorError(
            "token_ids: ids {low}..{high} leave the merged vocabulary of {text_vocab} + {audio_vocab}",
            low=low,
            high=high,
            text_vocab=limits.text_vocab,
            audio_vocab=limits.audio_vocab,
        )
    if first < 0 or scheduled.reserved_tokens > limits.max_seq_len:
        raise ExecutorError(
            "first_position: {first} does not fit {reserved_tokens} new tokens and a sequence of at most "
            "{max_seq_len}",
            first=first,
            reserved_tokens=scheduled.reserved_tokens - first,
            max_seq_len=limits.max_seq_len,
        )
    for name, tokens in (
        ("text_computed", scheduled.text_computed),
        ("audio_computed", scheduled.audio_computed),
    ):
        if not 0 <= tokens <= first:
            raise ExecutorError(
                "{name}: {tokens} must be in 0..{first}", name=name, tokens=tokens, first=first
            )


def _check_written_blocks(
    batch: ScheduledBatch, tables: list[NDArray[np.int64]], limits: ExecutorLimits
) -> None:
    """No block that a sequence writes belongs to another one."""
    written = [
        table[min(scheduled.text_computed, scheduled.audio_computed) // limits.tokens_per_block :]
        for scheduled, table in zip(batch.sequences, tables, strict=True)
    ]
    uses = np.bincount(np.concatenate(tables))
    if uses[np.concatenate(written)].max() > 1:
        raise ExecutorError("block_table: a sequence would write to a block of another one")


def check_logits(name: str, logits: Tensor, width: int) -> None:
    """Refuse logits [vocab] float32 of a wrong shape, with a value that is not finite, or of zeros only."""
    if logits.shape != (width,) or logits.dtype != torch.float32:
        raise ExecutorError(
            "{name}: expected float32 [{width}], got {dtype} {shape}; the weights or the engine do not "
            "belong to this bundle",
            name=name,
            width=width,
            dtype=logits.dtype,
            shape=list(logits.shape),
        )
    check_magnitude(name, float(logits.abs().sum()))


def logits_output(text: Tensor | None, audio: Tensor | None, limits: ExecutorLimits) -> StepOutput:
    """The result of a step that returns logits, [vocab] each, None for a skipped tail. Refuses them as
    `check_logits` does."""
    if text is not None:
        check_logits("logits", text, limits.text_vocab)
    if audio is not None:
        check_logits("audio_logits", audio, limits.audio_vocab)
    return StepOutput(text, audio)


def check_magnitude(name: str, magnitude: float) -> None:
    """Refuse logits by the sum of their absolute values.

    One reduction suffices: NaN and infinity propagate, and the sum is zero only if every value is.
    """
    if magnitude != magnitude or magnitude == float("inf"):
        raise ExecutorError("{name}: values are not finite; check the weights", name=name)
    if magnitude == 0.0:
        raise ExecutorError(
            "{name}: the forward step returned only zeros; it did not run, or the weights are empty",
            name=name,
        )


class Executor(Protocol):
    """Runs forward steps over a KV pool that it shares with the caller."""

    limits: ExecutorLimits
    device: torch.device
    """Device of the logits."""
    supports_deferred_tails: bool
    """Whether a tail may be skipped and filled later."""
    can_sample: bool
    """Whether the next ids can be sampled on the device."""
    requires_block_aligned_prefill: bool
    """Whether a prefill must start at a block boundary of the cache."""

    def execute(self, batch: ScheduledBatch) -> list[StepOutput]:
        """Run the step; one output per sequence, in order.

        Raises ExecutorError if the batch does not fit this executor or a result is not finite; what was
        written to the pool is then overwritten by the next step.
        """

    def is_in_flight(self, reply: ReplySampling) -> bool:
        """Whether the next step of this reply is already in flight. If it is what `execute` is asked for
        next, alone or with others in flight, its results are taken; any other step drops what is in flight.

        A dropped step still writes K/V of its tokens, perhaps into blocks that were freed meanwhile. That
        changes no position that is ever read, as whoever writes to such a block does so later on the same
        stream.
        """

    def close(self) -> None:
        """Release all resources; no step can be run afterwards."""
