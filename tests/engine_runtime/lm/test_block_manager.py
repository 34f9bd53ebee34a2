"""Block accounting: no block is lost or owned twice, and every token is at its place in the block table."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from engine_runtime.errors import OutOfBlocksError
from engine_runtime.lm.block_manager import BlockManager, Sequence


def append(blocks: BlockManager, sequence: Sequence, ids: list[int]) -> None:
    """What a successful forward step does to the accounting."""
    blocks.reserve(sequence, sequence.complete_tokens, sequence.num_tokens + len(ids))
    sequence.ids.extend(ids)
    sequence.text_computed = sequence.audio_computed = sequence.num_tokens
    blocks.seal(sequence)


def test_blocks_come_and_go() -> None:
    blocks = BlockManager(num_blocks=4, tokens_per_block=4)
    sequence = Sequence()
    append(blocks, sequence, [1, 2, 3, 4, 5])
    assert (blocks.num_used, blocks.num_free) == (2, 2)
    blocks.release(sequence)
    assert (blocks.num_used, blocks.num_free, blocks.num_cached) == (0, 4, 1)
    blocks.check_integrity([])


@pytest.mark.parametrize(("num_blocks", "tokens_per_block"), [(0, 16), (4, 0)])
def test_an_empty_pool_is_refused(num_blocks: int, tokens_per_block: int) -> None:
    with pytest.raises(OutOfBlocksError, match=f"{num_blocks} blocks of {tokens_per_block} tokens"):
        BlockManager(num_blocks, tokens_per_block)
    assert BlockManager(1, 1).num_free == 1


def test_a_prefix_is_reused_after_its_owner_has_gone() -> None:
    blocks = BlockManager(num_blocks=4, tokens_per_block=4)
    first, second = Sequence(), Sequence()
    append(blocks, first, list(range(10)))
    kept = first.block_table[:2]
    blocks.release(first)
    assert blocks.match([*range(8), 77]) == 8
    assert blocks.match([9, *range(1, 8)]) == 0
    assert blocks.adopt(second, [*range(8), 77]) == 8
    assert second.block_table == kept
    blocks.check_integrity([second])


def test_the_same_ids_after_another_past_are_another_block() -> None:
    blocks = BlockManager(num_blocks=8, tokens_per_block=2)
    first = Sequence()
    append(blocks, first, [1, 2, 3, 4])
    assert blocks.match([5, 6, 3, 4]) == 0


def test_a_shared_block_is_copied_when_it_is_written() -> None:
    blocks = BlockManager(num_blocks=8, tokens_per_block=4)
    first = Sequence()
    append(blocks, first, [1, 2, 3, 4, 5])
    second = blocks.fork(first)
    copies = blocks.reserve(second, 5, 6)
    assert [(copy.source, copy.target) for copy in copies] == [(first.block_table[1], second.block_table[1])]
    assert first.block_table[0] == second.block_table[0]
    assert blocks.reserve(first, 5, 6) == []
    blocks.check_integrity([first, second])


def test_tokens_with_a_tail_still_to_fill_are_not_offered_for_reuse() -> None:
    blocks = BlockManager(num_blocks=8, tokens_per_block=4)
    sequence = Sequence()
    blocks.reserve(sequence, 0, 8)
    sequence.ids.extend(range(8))
    sequence.audio_computed, sequence.text_computed = 8, 5
    blocks.seal(sequence)
    assert blocks.match(list(range(8))) == 4
    sequence.text_computed = 8
    blocks.seal(sequence)
    assert blocks.match(list(range(8))) == 8


def test_the_oldest_content_is_evicted_first_and_the_end_before_the_start() -> None:
    blocks = BlockManager(num_blocks=4, tokens_per_block=2)
    first, second = Sequence(), Sequence()
    append(blocks, first, [1, 2, 3, 4])
    blocks.release(first)
    append(blocks, second, [9] * 5)
    assert blocks.match([1, 2, 3, 4]) == 2
    blocks.check_integrity([second])


def test_running_out_changes_nothing_and_says_what_to_do() -> None:
    blocks = BlockManager(num_blocks=3, tokens_per_block=4)
    first = Sequence()
    append(blocks, first, list(range(10)))
    second = blocks.fork(first)
    with pytest.raises(OutOfBlocksError, match="Start a new conversation"):
        blocks.reserve(second, 10, 11)
    assert second.block_table == first.block_table
    blocks.check_integrity([first, second])


def test_damage_is_noticed() -> None:
    blocks = BlockManager(num_blocks=3, tokens_per_block=4)
    sequence = Sequence()
    append(blocks, sequence, list(range(5)))
    sequence.block_table[1] = sequence.block_table[0]
    with pytest.raises(RuntimeError, match="accounting is broken"):
        blocks.check_integrity([sequence])


class Pool:
    """Sequences over a pool that remembers for each slot which token, after which past, it holds."""

    def __init__(self) -> None:
        self.size = 3
        self.blocks = BlockManager(num_blocks=9, tokens_per_block=self.size)
        self.content: dict[tuple[int, int], tuple[int, ...]] = {}
        self.live: list[Sequence] = []

    def start(self) -> Sequence:
        sequence = Sequence()
        self.live.append(sequence)
        return sequence

    def append(self, sequence: Sequence, ids: list[int], skipped: str, fails: bool) -> None:
        past, total = sequence.num_tokens, sequence.num_tokens + len(ids)
        tables = [list(other.block_table) for other in self.live]
        try:
            copies = self.blocks.reserve(sequence, min(past, sequence.complete_tokens), total)
        except OutOfBlocksError:
            assert tables == [other.block_table for other in self.live]
            return
        for copy in copies:
            for slot in range(self.size):
                if (copy.source, slot) in self.content:
                    self.content[copy.target, slot] = self.content[copy.source, slot]
        if fails:
            self.blocks.rollback(sequence, past)
            return
        sequence.ids.extend(ids)
        if skipped != "text":
            sequence.text_computed = total
        if skipped != "audio":
            sequence.audio_computed = total
        for token in range(past, total):
            block = sequence.block_table[token // self.size]
            self.content[block, token % self.size] = tuple(sequence.ids[: token + 1])
        self.blocks.seal(sequence)

    def rollback(self, sequence: Sequence, keep: float) -> None:
        self.blocks.rollback(sequence, int(keep * sequence.num_tokens))

    def fork(self, sequence: Sequence) -> Sequence:
        other = self.blocks.fork(sequence)
        self.live.append(other)
        return other

    def adopt(self, ids: list[int]) -> Sequence:
        sequence = Sequence()
        tokens = self.blocks.adopt(sequence, ids)
        assert tokens % self.size == 0
        assert sequence.ids == ids[:tokens]
        self.live.append(sequence)
        return sequence

    def release(self, sequence: Sequence) -> None:
        self.blocks.release(sequence)
        assert sequence.block_table == []
        self.live = [other for other in self.live if other is not sequence]

    def check(self) -> None:
        """Every block is owned exactly, and every token is where its sequence looks for it."""
        self.blocks.check_integrity(self.live)
        owned = {block for sequence in self.live for block in sequence.block_table}
        assert self.blocks.num_used == len(owned)
        assert self.blocks.num_used + self.blocks.num_free == self.blocks.num_blocks
        for sequence in self.live:
            assert len(sequence.block_table) == -(-sequence.num_tokens // self.size)
            for token in range(sequence.num_tokens):
                block = sequence.block_table[token // self.size]
                assert self.content[block, token % self.size] == tuple(sequence.ids[: token + 1])


class PoolMachine(RuleBasedStateMachine):
    """Any order of calls; failures shrink to few calls."""

    sequences: Bundle[Sequence] = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool()

    @rule(target=sequences)
    def start(self) -> Sequence:
        return self.pool.start()

    @rule(
        sequence=sequences,
        ids=st.lists(st.integers(0, 1), min_size=1, max_size=7),
        skipped=st.sampled_from(["none", "none", "text", "audio"]),
        fails=st.booleans(),
    )
    def append(self, sequence: Sequence, ids: list[int], skipped: str, fails: bool) -> None:
        self.pool.append(sequence, ids, skipped, fails)

    @rule(sequence=sequences, keep=st.floats(0, 1))
    def rollback(self, sequence: Sequence, keep: float) -> None:
        self.pool.rollback(sequence, keep)

    @rule(target=sequences, sequence=sequences)
    def fork(self, sequence: Sequence) -> Sequence:
        return self.pool.fork(sequence)

    @rule(target=sequences, ids=st.lists(st.integers(0, 1), max_size=12))
    def adopt(self, ids: list[int]) -> Sequence:
        return self.pool.adopt(ids)

    @rule(sequence=consumes(sequences))
    def release(self, sequence: Sequence) -> None:
        self.pool.release(sequence)

    @invariant()
    def nothing_is_lost(self) -> None:
        self.pool.check()


TestPool = pytest.mark.slow(PoolMachine.TestCase)
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(seed=st.integers(0, 2**32))
def test_long_runs_of_random_calls(seed: int) -> None:
    """Hundreds of calls per run: full pools, evictions, copies and deferred tails in every mixture."""
    choose, pool = random.Random(seed), Pool()
    for _ in range(250):
        action = choose.choices(("append", "rollback", "fork", "adopt", "release"), (10, 3, 2, 3, 2))[0]
        if action == "adopt" or not pool.live:
            known = choose.choice(pool.live).ids if pool.live else []
            if len(pool.live) < 5:
                pool.adopt([*known, *choose.choices((0, 1), k=3)])
            continue
        sequence = choose.choice(pool.live)
        if action == "append":
            ids = choose.choices((0, 1), k=choose.randint(1, 5))
            skipped = choose.choice(("none", "none", "text", "audio"))
            pool.append(sequence, ids, skipped, fails=choose.random() < 0.15)
        elif action == "rollback":
            pool.rollback(sequence, choose.random())
        elif action == "fork" and len(pool.live) < 5:
            pool.fork(sequence)
        elif action == "release":
            pool.release(sequence)
        pool.check()
