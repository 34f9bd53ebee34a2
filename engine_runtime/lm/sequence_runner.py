"""SequenceRunner: rows of conversations in, logits out, over the one KV pool that all of them share.

In: the rows that a sequence should hold, or one sampled row. Out: logits of the last row. It makes merged ids
of rows, reuses what the sequence or the prefix cache holds already, and frees blocks of sequences at rest
when the pool runs out (their history stays; they are prefilled again when needed). One instance per PagedLM;
the thread that holds the engine's lock.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Protocol

from engine_runtime.bundle.bundle import SpecialIds
from engine_runtime.errors import OutOfBlocksError
from engine_runtime.lm.generation import Row, merged_id
from engine_runtime.lm.paged_lm import Logits, PagedLM
from engine_runtime.lm.sequence import Sequence
from engine_runtime.lm.step import Tails


class SequenceOwner(Protocol):
    """Whom a sequence belongs to; held weakly."""

    @property
    def is_resting(self) -> bool:
        """Whether nothing runs on the sequence, so that its blocks may be evicted."""


class SequenceRunner:
    """See the module."""

    def __init__(self, lm: PagedLM, special: SpecialIds, text_vocab: int) -> None:
        self._lm, self._special, self._text_vocab = lm, special, text_vocab
        self._entries: list[tuple[weakref.ref[SequenceOwner], Sequence]] = []

    @property
    def sequences(self) -> list[Sequence]:
        """All sequences that were registered and not released."""
        return [sequence for _, sequence in self._entries]

    def register(self, owner: SequenceOwner, sequence: Sequence) -> None:
        """`sequence` lives until `release`, or as long as its owner; blocks of dead owners are freed here."""
        self._collect()
        self._entries.append((weakref.ref(owner), sequence))

    def release(self, sequence: Sequence) -> None:
        """Free the blocks of `sequence`; full ones stay in the prefix cache until they are needed."""
        self._lm.blocks.release(sequence)
        self._entries = [entry for entry in self._entries if entry[1] is not sequence]

    def release_all(self) -> None:
        """`release` of every sequence."""
        for sequence in self.sequences:
            self.release(sequence)

    def merged_ids(self, rows: Iterable[Row]) -> list[int]:
        """What the language model reads of rows."""
        return [merged_id(row, self._special, self._text_vocab) for row in rows]

    def prefill(self, sequence: Sequence, rows: list[Row], tails: Tails) -> tuple[Logits, int]:
        """Make the cache hold exactly `rows`; logits of the last one, and how many rows had to be run.

        Errors as in `PagedLM.prefill`.
        """
        ids, lm = self.merged_ids(rows), self._lm
        # The last row is always run, since its logits are wanted.
        held = lm.align(sequence, ids[:-1])
        try:
            logits = lm.prefill(sequence, ids[sequence.num_rows :], tails)
        except OutOfBlocksError:
            self._evict_others(sequence)
            logits = lm.prefill(sequence, ids[sequence.num_rows :], tails)
        return logits, len(ids) - held

    def decode(self, sequence: Sequence, row: Row, tails: Tails) -> Logits:
        """Run one row of a reply. Errors as in `PagedLM.decode`."""
        (token_id,) = self.merged_ids((row,))
        try:
            return self._lm.decode(sequence, token_id, tails)
        except OutOfBlocksError:
            self._evict_others(sequence)
            return self._lm.decode(sequence, token_id, tails)

    def roll_back(self, sequence: Sequence, rows: list[Row]) -> None:
        """Keep of the cache only what belongs to `rows`; computes nothing."""
        self._lm.blocks.rollback(sequence, sequence.common_prefix(self.merged_ids(rows)))

    def _evict_others(self, sequence: Sequence) -> None:
        """Free the blocks of sequences at rest, `sequence` excepted."""
        self._collect()
        for reference, other in self._entries:
            owner = reference()
            if other is not sequence and owner is not None and owner.is_resting:
                self._lm.blocks.release(other)

    def _collect(self) -> None:
        """Free the blocks of sequences whose owner is gone."""
        for reference, sequence in self._entries:
            if reference() is None:
                self._lm.blocks.release(sequence)
        self._entries = [entry for entry in self._entries if entry[0]() is not None]
