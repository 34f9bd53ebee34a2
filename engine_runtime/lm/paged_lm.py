"""PagedLM: prefill, decode, rollback and prefix reuse of sequences over one executor and one KV pool.

In: merged ids. Out: logits of the last row. It combines the block manager (block ownership), the KV pool
(memory) and the executor (forward step): blocks are reserved and copied before a step, the sequence grows
after the step succeeded, full blocks are indexed for reuse. A failed step leaves the sequence unchanged.
Engine thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor

from engine_runtime.errors import ContextLengthError
from engine_runtime.lm.block_manager import BlockManager
from engine_runtime.lm.executor import Executor, SamplingExecutor, StepTensors
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.sampling_metadata import SampledIds
from engine_runtime.lm.sequence import Sequence
from engine_runtime.lm.step import BOTH_TAILS, StepInputBuilder, Tails


@dataclass(frozen=True, slots=True)
class Logits:
    """Logits of the last row; None for a skipped tail. [text_vocab] and [audio_vocab], float32. `sampled`
    replaces both if the executor sampled.
    """

    text: Tensor | None
    audio: Tensor | None
    sampled: SampledIds | None = None


class PagedLM:
    """The language model as the engine uses it. `notes` are remarks for the user."""

    def __init__(self, executor: Executor, cache: KVCache, blocks: BlockManager) -> None:
        self.executor, self.cache, self.blocks = executor, cache, blocks
        self.notes: tuple[str, ...] = ()
        self._inputs_builder = StepInputBuilder(executor, cache)

    @property
    def max_rows(self) -> int:
        """Rows of the longest sequence that one conversation can hold."""
        return min(self.executor.limits.max_seq_len, self.blocks.num_blocks * self.blocks.tokens_per_block)

    def prefill(self, sequence: Sequence, ids: list[int], tails: Tails = BOTH_TAILS) -> Logits:
        """Run all `ids` (at least one) after the rows of `sequence`; logits of the last one.

        Chunks of at most max_num_tokens. Raises OutOfBlocksError, ContextLengthError or ExecutorError; then
        the sequence keeps the rows that were prefilled before, rounded down to full blocks if the executor
        requires block alignment.
        """
        chunk = self.executor.limits.max_num_tokens
        if self.executor.requires_block_aligned_prefill:
            ids = self._open_last_block(sequence) + ids
            chunk -= chunk % self.blocks.tokens_per_block
        logits = Logits(None, None)
        for start in range(0, len(ids), chunk):
            is_last = start + chunk >= len(ids)
            wanted = tails if is_last else replace(tails, sampling=None)
            logits = self._run(sequence, ids[start : start + chunk], wanted, prefill=True)
        sequence.prompt_rows = sequence.num_rows
        return logits

    def decode(self, sequence: Sequence, token_id: int, tails: Tails = BOTH_TAILS) -> Logits:
        """One decode step: run one sampled row. Errors as in `prefill`."""
        return self._run(sequence, [token_id], tails, prefill=False)

    def align(self, sequence: Sequence, ids: list[int]) -> int:
        """Make `sequence` hold the longest cached prefix of `ids`; returns its number of rows (nothing is
        computed).

        Rows that differ are rolled back. If the prefix cache holds a longer prefix, its blocks are used
        instead; it is not consulted when rows are only appended.
        """
        own = sequence.common_prefix(ids)
        only_grows = 0 < own == sequence.num_rows
        if not only_grows and own < len(ids) and self.blocks.match(ids) > own:
            self.blocks.release(sequence)
            return self.blocks.adopt(sequence, ids)
        self.blocks.rollback(sequence, own)
        return own

    def close(self) -> None:
        """Release the executor's resources; nothing can be run afterwards."""
        self.executor.close()

    def _open_last_block(self, sequence: Sequence) -> list[int]:
        """Remove the rows of the last, partly filled block, which must be run again; returns their ids."""
        start = sequence.num_rows // self.blocks.tokens_per_block * self.blocks.tokens_per_block
        ids = sequence.ids[start:]
        self.blocks.rollback(sequence, start)
        return ids

    def _run(self, sequence: Sequence, ids: list[int], wanted: Tails, *, prefill: bool) -> Logits:
        past, total = sequence.num_rows, sequence.num_rows + len(ids)
        if total > self.executor.limits.max_seq_len:
            raise ContextLengthError(
                f"The conversation needs {total} rows, but the model supports at most "
                f"{self.executor.limits.max_seq_len}. Start a new conversation or send a shorter message."
            )
        tails = wanted if self.executor.supports_deferred_tails else replace(wanted, text=True, audio=True)
        first_written = min(past, sequence.complete_rows)
        self.cache.copy(self.blocks.reserve(sequence, first_written, total))
        try:
            logits = self._forward(self._inputs_builder.fill(sequence, ids, tails, prefill=prefill), wanted)
        except BaseException:
            self.blocks.rollback(sequence, past)
            raise
        sequence.ids.extend(ids)
        sequence.text_rows = total if tails.text else sequence.text_rows
        sequence.audio_rows = total if tails.audio else sequence.audio_rows
        self.blocks.seal(sequence)
        return logits

    def _forward(self, tensors: StepTensors, wanted: Tails) -> Logits:
        if wanted.sampling is not None:
            executor = cast(SamplingExecutor, self.executor)
            return Logits(None, None, executor.forward_and_sample(tensors, wanted.sampling))
        outputs = self.executor.forward(tensors)
        return Logits(
            outputs["logits"][0] if wanted.text else None,
            outputs["audio_logits"][0] if wanted.audio else None,
        )
