"""SequenceRunner: rows of conversations in, step outputs out, over one shared KV pool.

In: the rows that a sequence should hold, or one sampled row. Out: logits or sampled ids of the last row. It
converts rows to merged ids, reuses rows that the sequence or the prefix cache already holds, and evicts the
blocks of idle sequences when the pool runs out (their history remains and is prefilled again when needed).
One instance per PagedLM. Called by the thread that holds the engine's lock.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Protocol

from engine_runtime.bundle.bundle import SpecialIds
from engine_runtime.errors import OutOfBlocksError
from engine_runtime.lm.generation import Row, merged_id
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.lm.sampling_metadata import SamplingMetadata
from engine_runtime.lm.sequence import Sequence
from engine_runtime.lm.step import StepOutput, Tails


class SequenceOwner(Protocol):
    """Owner of a sequence; held by a weak reference."""

    @property
    def is_resting(self) -> bool:
        """Whether the sequence is idle, so that its blocks may be evicted."""


class SequenceRunner:
    """See the module."""

    def __init__(self, lm: PagedLM, special: SpecialIds, text_vocab: int) -> None:
        self._lm, self._special, self._text_vocab = lm, special, text_vocab
        self._entries: list[tuple[weakref.ref[SequenceOwner], Sequence]] = []

    @property
    def sequences(self) -> list[Sequence]:
        """All registered sequences that were not released."""
        return [sequence for _, sequence in self._entries]

    def register(self, owner: SequenceOwner, sequence: Sequence) -> None:
        """Track `sequence` until `release` or until its owner is collected; also frees blocks of collected
        owners."""
        self._collect()
        self._entries.append((weakref.ref(owner), sequence))

    def release(self, sequence: Sequence) -> None:
        """Free the blocks of `sequence`; full blocks stay in the prefix cache until they are evicted."""
        self._lm.blocks.release(sequence)
        self._entries = [entry for entry in self._entries if entry[1] is not sequence]

    def release_all(self) -> None:
        """`release` of every sequence."""
        for sequence in self.sequences:
            self.release(sequence)

    def merged_ids(self, rows: Iterable[Row]) -> list[int]:
        """Merged ids of rows, as the language model reads them."""
        return [merged_id(row, self._special, self._text_vocab) for row in rows]

    def prefill(
        self, sequence: Sequence, rows: list[Row], tails: Tails, sampling: SamplingMetadata | None = None
    ) -> tuple[StepOutput, int]:
        """Make the cache hold exactly `rows`; returns the output of the last one and the number of rows
        computed.

        Errors as in `PagedLM.prefill`.
        """
        ids, lm = self.merged_ids(rows), self._lm
        # The last row is always run, because its logits are needed.
        held = lm.align(sequence, ids[:-1])
        try:
            output = lm.prefill(sequence, ids[sequence.num_rows :], tails, sampling)
        except OutOfBlocksError:
            self._evict_others(sequence)
            output = lm.prefill(sequence, ids[sequence.num_rows :], tails, sampling)
        return output, len(ids) - held

    def decode(
        self,
        sequence: Sequence,
        row: Row,
        tails: Tails,
        sampling: SamplingMetadata | None = None,
        *,
        exclusive_gpu: bool = False,
    ) -> StepOutput:
        """Run one row of a reply. Errors as in `PagedLM.step`."""
        (token_id,) = self.merged_ids((row,))
        try:
            return self._lm.decode(sequence, token_id, tails, sampling, exclusive_gpu=exclusive_gpu)
        except OutOfBlocksError:
            self._evict_others(sequence)
            return self._lm.decode(sequence, token_id, tails, sampling, exclusive_gpu=exclusive_gpu)

    def roll_back(self, sequence: Sequence, rows: list[Row]) -> None:
        """Truncate the cached sequence to its common prefix with `rows`; computes nothing."""
        self._lm.blocks.rollback(sequence, sequence.common_prefix(self.merged_ids(rows)))

    def _evict_others(self, sequence: Sequence) -> None:
        """Free the blocks of idle sequences, except `sequence`."""
        self._collect()
        for reference, other in self._entries:
            owner = reference()
            if other is not sequence and owner is not None and owner.is_resting:
                self._lm.blocks.release(other)

    def _collect(self) -> None:
        """Free the blocks of sequences whose owner was collected."""
        for reference, sequence in self._entries:
            if reference() is None:
                self._lm.blocks.release(sequence)
        self._entries = [entry for entry in self._entries if entry[0]() is not None]
