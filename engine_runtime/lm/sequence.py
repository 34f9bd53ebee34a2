"""Sequence: the positions of one conversation in the KV cache.

In: merged ids as they are prefilled or decoded. Out: the block table and the position counts for a forward
step. No tensors, no policy; the BlockManager allocates and frees the blocks. Engine thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Sequence:
    """Positions in the cache, oldest first.

    Attributes:
        ids: merged id of each position (a text id, or `text_vocab + code`).
        block_table: block i holds positions [i * tokens_per_block, (i + 1) * tokens_per_block). The last one
            may be reserved for the next token.
        hashes: chained content hash of each full block that was sealed.
        text_computed, audio_computed: positions whose K/V of that tail is written (a prefix); the rest is
            filled from kept trunk outputs before that tail is read again.
        prompt_tokens: positions at the end of the last prefill (`context_lengths` of a decode step).
    """

    ids: list[int] = field(default_factory=list)
    block_table: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    text_computed: int = 0
    audio_computed: int = 0
    prompt_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Positions in the cache (the trunk's K/V is always complete)."""
        return len(self.ids)

    @property
    def complete_tokens(self) -> int:
        """Positions whose K/V is written in the trunk and in both tails."""
        return min(self.text_computed, self.audio_computed)

    def common_prefix(self, ids: list[int]) -> int:
        """Number of leading ids that equal those in the cache."""
        shared = min(len(self.ids), len(ids))
        if self.ids[:shared] == ids[:shared]:
            return shared
        return next(index for index in range(shared) if self.ids[index] != ids[index])
