"""Blocks of tokens that may be run ahead: reserved where there is room, and dropped with their sequence."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from engine_runtime.errors import ExecutorError, OutOfBlocksError
from engine_runtime.lm.block_manager import BlockManager, Sequence
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.paged_lm import PagedLM, StepRequest
from engine_runtime.lm.step import (
    BatchCheck,
    ExecutorLimits,
    ReplySampling,
    SampledIds,
    SamplingMetadata,
    ScheduledBatch,
    StepOutput,
)
from engine_runtime.types import SamplingParams
from tests.factories.tiny_lm import make_thin

SEEN = torch.zeros(8, dtype=torch.bool)


@dataclass
class CheckedExecutor:
    """Checks each step as a real executor does, and notes whose following token may be run ahead."""

    limits: ExecutorLimits
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    supports_deferred_tails: bool = True
    can_sample: bool = True
    requires_block_aligned_prefill: bool = False
    ahead: list[list[bool]] = field(default_factory=list)
    is_broken: bool = False

    def execute(self, batch: ScheduledBatch) -> list[StepOutput]:
        BatchCheck(self.limits, can_sample=True)(batch)
        if self.is_broken:
            raise ExecutorError("it is broken")
        self.ahead.append([one.ahead is not None for one in batch.sequences])
        return [StepOutput(None, None, SampledIds(None, 1)) for _ in batch.sequences]

    def is_in_flight(self, reply: ReplySampling) -> bool:
        return reply.eosp == 1

    def close(self) -> None: ...


def make(num_blocks: int, max_seq_len: int = 16) -> tuple[PagedLM, CheckedExecutor]:
    """Blocks of four tokens."""
    model = make_thin()
    cache = KVCache(model.config, num_blocks, 4)
    executor = CheckedExecutor(cache.limits(model.config, max_seq_len, 16, 4))
    return PagedLM(executor, cache, BlockManager(num_blocks, 4)), executor


def sampling(eosp: int = 1) -> SamplingMetadata:
    reply = ReplySampling(SamplingParams(), 9, eosp, SEEN, SEEN)
    return SamplingMetadata(reply, 0.0, 0.0, 0, 0, False, False)


def begin(paged: PagedLM, *lengths: int) -> list[Sequence]:
    sequences = [Sequence() for _ in lengths]
    for index, (sequence, length) in enumerate(zip(sequences, lengths, strict=True)):
        paged.prefill(sequence, [index] * length)
    return sequences


def step(paged: PagedLM, sequences: list[Sequence]) -> None:
    paged.step([StepRequest(one, [7], sampling=sampling(), ahead=sampling()) for one in sequences])


def test_the_token_of_a_step_ahead_has_a_block() -> None:
    paged, executor = make(8)
    sequences = begin(paged, 2, 3)
    step(paged, sequences)
    assert executor.ahead[-1] == [True, True]
    assert [len(one.block_table) for one in sequences] == [1, 2]
    step(paged, sequences)
    assert [len(one.block_table) for one in sequences] == [2, 2]
    paged.blocks.check_integrity(sequences)


def test_a_sequence_alone_or_beside_others_that_may_not_go_on_reserves_nothing() -> None:
    paged, executor = make(8)
    sequences = begin(paged, 3, 3)
    step(paged, sequences[:1])
    paged.step([StepRequest(sequences[0], [7], ahead=sampling()), StepRequest(sequences[1], [7])])
    assert executor.ahead[-2:] == [[False], [False, False]]
    assert paged.blocks.num_used == 3


@pytest.mark.parametrize("action", ["rollback", "release", "align"])
def test_a_reserved_block_leaves_with_the_tokens(action: str) -> None:
    paged, _ = make(8)
    sequences = begin(paged, 3, 2)
    step(paged, sequences)
    one = sequences[0]
    assert (one.num_tokens, len(one.block_table)) == (4, 2)
    if action == "rollback":
        paged.blocks.rollback(one, 4)
    elif action == "release":
        paged.blocks.release(one)
    else:
        paged.align(one, [*one.ids, 5])
    assert len(one.block_table) == one.num_tokens // 4
    paged.blocks.check_integrity(sequences)
    paged.blocks.release(one)
    paged.blocks.release(sequences[1])
    assert paged.blocks.num_used == 0


def test_a_failed_step_gives_the_reserved_blocks_back() -> None:
    paged, executor = make(8)
    sequences = begin(paged, 3, 3)
    used, executor.is_broken = paged.blocks.num_used, True
    with pytest.raises(ExecutorError, match="broken"):
        step(paged, sequences)
    assert paged.blocks.num_used == used
    paged.blocks.check_integrity(sequences)


def test_present_tokens_come_before_tokens_ahead_and_a_full_pool_is_no_error() -> None:
    paged, executor = make(3)
    sequences = begin(paged, 3, 4)
    step(paged, sequences)  # the last block is for the present token of the second one
    assert executor.ahead[-1] == [False, False]
    assert [one.num_tokens for one in sequences] == [4, 5]
    with pytest.raises(OutOfBlocksError):
        step(paged, sequences)
    paged.blocks.check_integrity(sequences)


def test_no_token_is_reserved_beyond_the_context() -> None:
    paged, executor = make(8, max_seq_len=6)
    sequences = begin(paged, 2, 5)
    step(paged, sequences)
    assert executor.ahead[-1] == [True, False]
    assert [one.num_tokens for one in sequences] == [3, 6]


def test_a_reserved_block_is_shared_by_a_fork_and_copied_by_who_writes_first() -> None:
    paged, _ = make(8)
    sequences = begin(paged, 3, 3)
    step(paged, sequences)
    fork = paged.blocks.fork(sequences[0])
    shared = fork.block_table[-1]
    step(paged, sequences)
    assert fork.block_table[-1] == shared != sequences[0].block_table[1]
    paged.blocks.check_integrity([*sequences, fork])


def test_a_step_is_in_flight_if_that_of_its_reply_is() -> None:
    paged, _ = make(8)
    request = StepRequest(Sequence(), [7])
    assert not paged.is_in_flight(request)
    request.sampling = sampling(eosp=2)
    assert not paged.is_in_flight(request)
    request.sampling = sampling(eosp=1)
    assert paged.is_in_flight(request)


@pytest.mark.parametrize(("is_aligned", "expected"), [(False, [[5, 6]]), (True, [[0, 0, 5, 6]])])
def test_a_prefill_may_have_to_begin_at_a_block(is_aligned: bool, expected: list[list[int]]) -> None:
    paged, executor = make(8)
    (sequence,) = begin(paged, 6)
    executor.requires_block_aligned_prefill = is_aligned
    assert [request.token_ids for request in paged.prefill_requests(sequence, [5, 6])] == expected
    assert sequence.num_tokens == (4 if is_aligned else 6)
