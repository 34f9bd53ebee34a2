"""PagedLM: prefill, decode, rollback and prefix reuse of sequences over one executor and one KV pool.

In: merged ids. Out: logits or sampled ids of the last token. It combines the block manager (block ownership),
the KV pool (memory) and the executor (forward step): blocks are reserved and copied before a step, sequences
grow after the step succeeded, full blocks are indexed for reuse. A failed step leaves every sequence
unchanged. Engine thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine_runtime.errors import ContextLengthError, OutOfBlocksError, Problem
from engine_runtime.lm.block_manager import BlockManager, Sequence
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.step import (
    BOTH_TAILS,
    Executor,
    SamplingMetadata,
    ScheduledBatch,
    ScheduledSequence,
    StepOutput,
    Tails,
)


@dataclass(slots=True)
class StepRequest:
    """Tokens to run in a step: `token_ids` after the positions of `sequence`. See ScheduledSequence; `ahead`
    is a wish, which is not granted where a block is missing."""

    sequence: Sequence
    token_ids: list[int]
    tails: Tails = BOTH_TAILS
    sampling: SamplingMetadata | None = None
    is_prefill: bool = False
    wants_output: bool = True
    ahead: SamplingMetadata | None = None


class PagedLM:
    """The language model as the engine uses it. `notes` are remarks for the user."""

    def __init__(self, executor: Executor, cache: KVCache, blocks: BlockManager) -> None:
        self.executor, self.cache, self.blocks = executor, cache, blocks
        self.notes: tuple[Problem, ...] = ()

    @property
    def max_tokens(self) -> int:
        """Positions of the longest sequence that one conversation can hold."""
        return min(self.executor.limits.max_seq_len, self.blocks.num_blocks * self.blocks.tokens_per_block)

    def prefill(
        self,
        sequence: Sequence,
        ids: list[int],
        tails: Tails = BOTH_TAILS,
        sampling: SamplingMetadata | None = None,
    ) -> StepOutput:
        """Run all `ids` (at least one) after the positions of `sequence`; returns the output of the last one.

        Chunks of at most max_num_tokens. Raises OutOfBlocksError, ContextLengthError or ExecutorError; then
        the sequence keeps the positions that were prefilled before, rounded down to full blocks if the
        executor requires block alignment.
        """
        for request in self.prefill_requests(sequence, ids, tails, sampling):
            (output,) = self.step([request])
        return output

    def prefill_requests(
        self,
        sequence: Sequence,
        ids: list[int],
        tails: Tails = BOTH_TAILS,
        sampling: SamplingMetadata | None = None,
        *,
        wants_output: bool = True,
    ) -> Iterator[StepRequest]:
        """The steps of `prefill`, one after the other: each is run before the next is taken. Only the last
        one has an output, if that is wanted."""
        chunk = self.executor.limits.max_num_tokens
        if self.executor.requires_block_aligned_prefill:
            # Such an executor (TensorRT-LLM) cannot begin a prefill within a block: the last, partly filled
            # one is computed again.
            ids = self._open_last_block(sequence) + ids
            chunk -= chunk % self.blocks.tokens_per_block
        for start in range(0, len(ids), chunk):
            is_last = start + chunk >= len(ids)
            part = ids[start : start + chunk]
            yield StepRequest(
                sequence,
                part,
                tails,
                sampling if is_last else None,
                is_prefill=True,
                wants_output=wants_output and is_last,
            )
        sequence.prompt_tokens = sequence.num_tokens

    def decode(
        self,
        sequence: Sequence,
        token_id: int,
        tails: Tails = BOTH_TAILS,
        sampling: SamplingMetadata | None = None,
        *,
        exclusive_gpu: bool = False,
    ) -> StepOutput:
        """One decode step: run one sampled token. Errors as in `step`."""
        request = StepRequest(sequence, [token_id], tails, sampling)
        (output,) = self.step([request], exclusive_gpu=exclusive_gpu)
        return output

    def step(self, requests: list[StepRequest], *, exclusive_gpu: bool = False) -> list[StepOutput]:
        """One forward step of one or more sequences, each listed once; one output per request.

        Raises OutOfBlocksError, ContextLengthError or ExecutorError; the sequences are unchanged then.
        """
        before = [request.sequence.num_tokens for request in requests]
        try:
            scheduled = tuple(self._schedule(request) for request in requests)
            if len(requests) > 1 and all(request.ahead is not None for request in requests):
                self._look_ahead(requests, scheduled)
            outputs = self.executor.execute(ScheduledBatch(scheduled, exclusive_gpu))
        # BaseException: an interrupt between reserve and append would leave blocks that belong to no
        # position.
        except BaseException:
            for request, tokens in zip(requests, before, strict=True):
                self.blocks.rollback(request.sequence, tokens)
            raise
        for request in requests:
            self._append(request)
        return outputs

    def is_in_flight(self, request: StepRequest) -> bool:
        """Whether this step is already in flight; see `Executor`."""
        return request.sampling is not None and self.executor.is_in_flight(request.sampling.reply)

    def align(self, sequence: Sequence, ids: list[int]) -> int:
        """Make `sequence` hold the longest cached prefix of `ids`; returns its number of positions (nothing
        is computed).

        Tokens that differ are rolled back. If the prefix cache holds a longer prefix, its blocks are used
        instead; it is not consulted when tokens are only appended.
        """
        own = sequence.common_prefix(ids)
        # The usual case while the user speaks: tokens are appended piece by piece, and hashing all of the
        # conversation each time would find nothing.
        only_grows = 0 < own == sequence.num_tokens
        if not only_grows and own < len(ids) and self.blocks.match(ids) > own:
            self.blocks.release(sequence)
            return self.blocks.adopt(sequence, ids)
        self.blocks.rollback(sequence, own)
        return own

    def close(self) -> None:
        """Release the executor's resources; nothing can be run afterwards."""
        self.executor.close()

    def _open_last_block(self, sequence: Sequence) -> list[int]:
        """Remove the positions of the last, partly filled block, which must be run again; returns their
        ids."""
        start = sequence.num_tokens // self.blocks.tokens_per_block * self.blocks.tokens_per_block
        ids = sequence.ids[start:]
        self.blocks.rollback(sequence, start)
        return ids

    def _schedule(self, request: StepRequest) -> ScheduledSequence:
        """Reserve the blocks of the new tokens."""
        sequence = request.sequence
        past, total = sequence.num_tokens, sequence.num_tokens + len(request.token_ids)
        if total > self.executor.limits.max_seq_len:
            raise ContextLengthError(
                "The conversation needs {total} tokens, but the model supports at most {max_seq_len}.",
                "Start a new conversation or send a shorter message.",
                total=total,
                max_seq_len=self.executor.limits.max_seq_len,
            )
        # From `complete_tokens` on, not from `past`: a deferred tail is still to be written for the positions
        # between.
        self.cache.copy(self.blocks.reserve(sequence, min(past, sequence.complete_tokens), total))
        return ScheduledSequence(
            token_ids=request.token_ids,
            first_position=past,
            block_table=sequence.block_table,
            text_computed=sequence.text_computed,
            audio_computed=sequence.audio_computed,
            prompt_tokens=sequence.prompt_tokens,
            is_prefill=request.is_prefill,
            tails=request.tails,
            sampling=request.sampling,
            wants_output=request.wants_output,
        )

    def _look_ahead(self, requests: list[StepRequest], scheduled: tuple[ScheduledSequence, ...]) -> None:
        """Reserve the slot of the position after those of this step, of all sequences or of those up to the
        first without room. What is not used stays with its sequence, and leaves it in a rollback."""
        for request, one in zip(requests, scheduled, strict=True):
            if one.num_tokens >= self.executor.limits.max_seq_len:
                return
            try:
                # No copies: a block that is still shared holds none of its positions yet.
                self.blocks.reserve(request.sequence, one.num_tokens, one.num_tokens + 1)
            except OutOfBlocksError:
                return
            one.ahead = request.ahead

    def _append(self, request: StepRequest) -> None:
        """Add the new tokens to the sequence and index its full blocks."""
        sequence, computes_both = request.sequence, not self.executor.supports_deferred_tails
        sequence.ids.extend(request.token_ids)
        if request.tails.text or computes_both:
            sequence.text_computed = sequence.num_tokens
        if request.tails.audio or computes_both:
            sequence.audio_computed = sequence.num_tokens
        self.blocks.seal(sequence)
