"""Ownership of KV blocks: reference counts, prefix reuse by content hash, copy-on-write, rollback. No
tensors.

In: sequences that are about to grow. Out: changed block tables, and the block copies that the KV pool
must make. A block is in exactly one state:

    free     not referenced, content not reusable
    cached   not referenced, but indexed by its content hash: reused on a match, evicted oldest first
    used     referenced by one or more block tables

The hash of a full block covers its ids and the hash of the block before it, so equal hashes mean equal tokens
and an equal prefix. Only the engine thread calls this.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine_runtime.errors import OutOfBlocksError


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


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """The pool must copy block `source` onto block `target` before the next write."""

    source: int
    target: int


class BlockManager:
    """Accounting of `num_blocks` blocks of `tokens_per_block` positions."""

    def __init__(self, num_blocks: int, tokens_per_block: int) -> None:
        if num_blocks < 1 or tokens_per_block < 1:
            raise OutOfBlocksError(
                "A KV pool of {num_blocks} blocks of {tokens_per_block} tokens is empty.",
                "Set kv_blocks and tokens_per_block of the bundle to 1 or more.",
                num_blocks=num_blocks,
                tokens_per_block=tokens_per_block,
            )
        self.num_blocks = num_blocks
        self.tokens_per_block = tokens_per_block
        self._ref_count = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._free: deque[int] = deque(range(num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now: free ones and cached ones that may be evicted."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Unreferenced blocks whose content can still be reused."""
        return len(self._cached)

    @property
    def num_used(self) -> int:
        """Blocks in at least one block table."""
        return self.num_blocks - self.num_free

    def match(self, ids: list[int]) -> int:
        """Number of leading tokens of `ids` that cached full blocks hold. Changes nothing."""
        return len(self._matching_blocks(ids)[0]) * self.tokens_per_block

    def adopt(self, sequence: Sequence, ids: list[int]) -> int:
        """Attach the cached full blocks of a prefix of `ids` to an empty sequence; returns its number of
        positions."""
        if sequence.block_table:
            raise RuntimeError("only an empty sequence can adopt a prefix; release it first")
        blocks, hashes = self._matching_blocks(ids)
        for block in blocks:
            self._acquire(block)
        tokens = len(blocks) * self.tokens_per_block
        sequence.block_table, sequence.hashes, sequence.ids = blocks, hashes, list(ids[:tokens])
        sequence.text_computed = sequence.audio_computed = sequence.prompt_tokens = tokens
        return tokens

    def reserve(self, sequence: Sequence, first_token: int, end_token: int) -> list[BlockCopy]:
        """Make positions [first_token, end_token) writable by this sequence alone; all or nothing.

        New blocks are appended; a shared block in the range is replaced by a copy; a block that was indexed
        by hash leaves the index, because its content will change. Raises OutOfBlocksError, having changed
        nothing.
        """
        first_block = first_token // self.tokens_per_block
        total_blocks = -(-end_token // self.tokens_per_block)
        table = sequence.block_table
        written = enumerate(table[first_block:], first_block)
        shared = [index for index, block in written if self._ref_count[block] > 1]
        missing = max(0, total_blocks - len(table))
        # All is checked before anything is taken: a failed step must leave every sequence unchanged.
        if len(shared) + missing > self.num_free:
            raise OutOfBlocksError(
                "The KV cache is full: {count} blocks are needed, and {num_free} of {num_blocks} are free.",
                "Start a new conversation, shorten the question, or give the bundle more kv_blocks.",
                count=len(shared) + missing,
                num_free=self.num_free,
                num_blocks=self.num_blocks,
            )
        copies = []
        for index in shared:
            target = self._allocate()
            copies.append(BlockCopy(table[index], target))
            self._ref_count[table[index]] -= 1
            table[index] = target
        # A block that is about to be overwritten must leave the index first: a prefix that matched it later
        # would read the new content.
        for block in table[first_block:]:
            if self._hash_of[block] is not None:
                self._forget(block)
        del sequence.hashes[first_block:]
        table.extend(self._allocate() for _ in range(missing))
        return copies

    def seal(self, sequence: Sequence) -> None:
        """Index the full, complete blocks of the sequence by content hash, so that other sequences can reuse
        them."""
        size = self.tokens_per_block
        for index in range(len(sequence.hashes), sequence.complete_tokens // size):
            previous = sequence.hashes[-1] if sequence.hashes else b""
            digest = _chain(previous, sequence.ids[index * size : (index + 1) * size])
            sequence.hashes.append(digest)
            # Two sequences may compute the same block at the same time. The index has one block for a hash:
            # the first stays in it, the other is never reused.
            if digest not in self._block_of:
                block = sequence.block_table[index]
                self._block_of[digest] = block
                self._hash_of[block] = digest

    def rollback(self, sequence: Sequence, num_tokens: int) -> None:
        """Drop all positions after the first `num_tokens` and free their blocks, and those reserved for later
        positions."""
        if not 0 <= num_tokens <= sequence.num_tokens:
            raise RuntimeError(f"cannot roll a sequence of {sequence.num_tokens} tokens back to {num_tokens}")
        kept_blocks = -(-num_tokens // self.tokens_per_block)
        # Last block first: cached blocks are evicted oldest first, and a prefix is of no use without its
        # beginning.
        for block in reversed(sequence.block_table[kept_blocks:]):
            self._drop(block)
        del sequence.block_table[kept_blocks:]
        del sequence.hashes[num_tokens // self.tokens_per_block :]
        del sequence.ids[num_tokens:]
        sequence.text_computed = min(sequence.text_computed, num_tokens)
        sequence.audio_computed = min(sequence.audio_computed, num_tokens)
        sequence.prompt_tokens = min(sequence.prompt_tokens, num_tokens)

    def release(self, sequence: Sequence) -> None:
        """Free every block of the sequence; it is empty afterwards."""
        self.rollback(sequence, 0)

    def fork(self, sequence: Sequence) -> Sequence:
        """A second sequence that shares the positions and blocks; the first to write gets a copy
        (copy-on-write)."""
        for block in sequence.block_table:
            self._ref_count[block] += 1
        return Sequence(
            ids=list(sequence.ids),
            block_table=list(sequence.block_table),
            hashes=list(sequence.hashes),
            text_computed=sequence.text_computed,
            audio_computed=sequence.audio_computed,
            prompt_tokens=sequence.prompt_tokens,
        )

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raise RuntimeError unless the reference counts match the block tables of all live sequences."""
        owners = Counter(block for sequence in sequences for block in sequence.block_table)
        states = Counter(
            [*self._free, *self._cached, *(b for b in range(self.num_blocks) if self._ref_count[b])]
        )
        wrong = [block for block in range(self.num_blocks) if states[block] != 1]
        wrong += [block for block in range(self.num_blocks) if owners[block] != self._ref_count[block]]
        wrong += [block for block in self._cached if self._hash_of[block] is None]
        wrong += [block for block in self._free if self._hash_of[block] is not None]
        wrong += [block for digest, block in self._block_of.items() if self._hash_of[block] != digest]
        if wrong or len(self._block_of) != sum(digest is not None for digest in self._hash_of):
            raise RuntimeError(f"KV block accounting is broken for blocks {sorted(set(wrong))}")

    def _matching_blocks(self, ids: list[int]) -> tuple[list[int], list[bytes]]:
        blocks: list[int] = []
        hashes: list[bytes] = []
        size = self.tokens_per_block
        for start in range(0, len(ids) - size + 1, size):
            digest = _chain(hashes[-1] if hashes else b"", ids[start : start + size])
            block = self._block_of.get(digest)
            if block is None:
                break
            blocks.append(block)
            hashes.append(digest)
        return blocks, hashes

    def _acquire(self, block: int) -> None:
        if self._ref_count[block] == 0:
            del self._cached[block]
        self._ref_count[block] += 1

    def _allocate(self) -> int:
        if self._free:
            block = self._free.popleft()
        else:
            block, _ = self._cached.popitem(last=False)
            self._forget(block)
        self._ref_count[block] = 1
        return block

    def _drop(self, block: int) -> None:
        self._ref_count[block] -= 1
        if self._ref_count[block] == 0:
            if self._hash_of[block] is None:
                self._free.append(block)
            else:
                self._cached[block] = None

    def _forget(self, block: int) -> None:
        digest = self._hash_of[block]
        if digest is not None:
            del self._block_of[digest]
            self._hash_of[block] = None


def _chain(previous: bytes, ids: list[int]) -> bytes:
    return hashlib.blake2b(previous + array("q", ids).tobytes(), digest_size=16).digest()
