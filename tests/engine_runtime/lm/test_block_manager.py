"""Block accounting: no block lost or owned twice, and every row where its sequence will look for it."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from engine_runtime.errors import OutOfBlocksError
from engine_runtime.lm.block_manager import BlockManager
from engine_runtime.lm.sequence import Sequence


def append(blocks: BlockManager, sequence: Sequence, ids: list[int]) -> None:
    """What a successful forward step does to the accounting."""
    blocks.reserve(sequence, sequence.complete_rows, sequence.num_rows + len(ids))
    sequence.ids.extend(ids)
    sequence.text_rows = sequence.audio_rows = sequence.num_rows
    blocks.seal(sequence)


def test_blocks_come_and_go() -> None:
    blocks = BlockManager(num_blocks=4, tokens_per_block=4)
    sequence = Sequence()
    append(blocks, sequence, [1, 2, 3, 4, 5])
    assert (blocks.num_used, blocks.num_free) == (2, 2)
    blocks.release(sequence)
    assert (blocks.num_used, blocks.num_free, blocks.num_cached) == (0, 4, 1)
    blocks.check_integrity([])


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


def test_rows_with_a_tail_still_to_fill_are_not_offered_for_reuse() -> None:
    blocks = BlockManager(num_blocks=8, tokens_per_block=4)
    sequence = Sequence()
    blocks.reserve(sequence, 0, 8)
    sequence.ids.extend(range(8))
    sequence.audio_rows, sequence.text_rows = 8, 5
    blocks.seal(sequence)
    assert blocks.match(list(range(8))) == 4
    sequence.text_rows = 8
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


class PoolMachine(RuleBasedStateMachine):
    """Any order of calls, against a pool that remembers for each slot which row, after which past, it
    holds."""

    sequences: Bundle[Sequence] = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.size = 3
        self.blocks = BlockManager(num_blocks=9, tokens_per_block=self.size)
        self.pool: dict[tuple[int, int], tuple[int, ...]] = {}
        self.live: list[Sequence] = []

    def write(self, sequence: Sequence, first: int, end: int) -> None:
        for row in range(first, end):
            block = sequence.block_table[row // self.size]
            self.pool[block, row % self.size] = tuple(sequence.ids[: row + 1])

    @rule(target=sequences)
    def start(self) -> Sequence:
        sequence = Sequence()
        self.live.append(sequence)
        return sequence

    @rule(
        sequence=sequences,
        ids=st.lists(st.integers(0, 1), min_size=1, max_size=7),
        skipped=st.sampled_from(["none", "none", "text", "audio"]),
        fails=st.booleans(),
    )
    def append(self, sequence: Sequence, ids: list[int], skipped: str, fails: bool) -> None:
        past, total = sequence.num_rows, sequence.num_rows + len(ids)
        tables = [list(other.block_table) for other in self.live]
        try:
            copies = self.blocks.reserve(sequence, min(past, sequence.complete_rows), total)
        except OutOfBlocksError:
            assert tables == [other.block_table for other in self.live]
            return
        for copy in copies:
            for slot in range(self.size):
                if (copy.source, slot) in self.pool:
                    self.pool[copy.target, slot] = self.pool[copy.source, slot]
        if fails:
            self.blocks.rollback(sequence, past)
            return
        sequence.ids.extend(ids)
        if skipped != "text":
            sequence.text_rows = total
        if skipped != "audio":
            sequence.audio_rows = total
        self.write(sequence, past, total)
        self.blocks.seal(sequence)

    @rule(sequence=sequences, keep=st.floats(0, 1))
    def rollback(self, sequence: Sequence, keep: float) -> None:
        self.blocks.rollback(sequence, int(keep * sequence.num_rows))

    @rule(target=sequences, sequence=sequences)
    @precondition(lambda self: len(self.live) < 6)
    def fork(self, sequence: Sequence) -> Sequence:
        other = self.blocks.fork(sequence)
        self.live.append(other)
        return other

    @rule(target=sequences, ids=st.lists(st.integers(0, 1), max_size=12))
    @precondition(lambda self: len(self.live) < 6)
    def adopt(self, ids: list[int]) -> Sequence:
        sequence = Sequence()
        rows = self.blocks.adopt(sequence, ids)
        assert rows % self.size == 0
        assert sequence.ids == ids[:rows]
        self.live.append(sequence)
        return sequence

    @rule(sequence=consumes(sequences))
    def release(self, sequence: Sequence) -> None:
        self.blocks.release(sequence)
        assert sequence.block_table == []
        self.live = [other for other in self.live if other is not sequence]

    @invariant()
    def every_block_is_owned_exactly(self) -> None:
        self.blocks.check_integrity(self.live)
        owned = {block for sequence in self.live for block in sequence.block_table}
        assert self.blocks.num_used == len(owned)
        assert self.blocks.num_used + self.blocks.num_free == self.blocks.num_blocks

    @invariant()
    def every_row_is_where_its_sequence_looks(self) -> None:
        for sequence in self.live:
            assert len(sequence.block_table) == -(-sequence.num_rows // self.size)
            for row in range(sequence.num_rows):
                block = sequence.block_table[row // self.size]
                assert self.pool[block, row % self.size] == tuple(sequence.ids[: row + 1])


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
