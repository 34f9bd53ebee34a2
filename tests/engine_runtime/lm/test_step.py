"""Scheduled batches: a field that does not fit the pool or the model is rejected by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine_runtime.errors import ExecutorError
from engine_runtime.lm.step import (
    BatchCheck,
    ExecutorLimits,
    ReplySampling,
    SamplingMetadata,
    ScheduledBatch,
    ScheduledSequence,
    check_logits,
)
from engine_runtime.types import SamplingParams

LIMITS = ExecutorLimits(
    text_vocab=50,
    audio_vocab=20,
    num_layers=3,
    num_blocks=8,
    tokens_per_block=4,
    max_seq_len=20,
    max_num_tokens=6,
    max_batch_size=2,
)
STEP = ScheduledSequence([5], 9, [3, 0, 7], 9, 8, 6, is_prefill=False)


def check(*sequences: ScheduledSequence, can_sample: bool = False) -> None:
    BatchCheck(LIMITS, can_sample=can_sample)(ScheduledBatch(sequences))


def test_a_valid_step_is_accepted() -> None:
    check(STEP)
    check(replace(STEP, token_ids=[0, 69], is_prefill=True))
    check(STEP, replace(STEP, block_table=[1, 2, 4]))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"token_ids": []}, "token_ids: a step needs at least one token"),
        ({"token_ids": [1, 2]}, "token_ids: a decode step takes exactly 1 token, got 2"),
        ({"token_ids": [1] * 7, "is_prefill": True}, "token_ids: 7 tokens exceed max_num_tokens 6"),
        ({"token_ids": [-1]}, "token_ids: ids -1..-1 leave the merged vocabulary of 50"),
        ({"token_ids": [70]}, "token_ids: ids 70..70 leave"),
        ({"first_position": -1}, "first_position: -1 does not fit 1 new tokens"),
        ({"first_position": 20, "text_computed": 20}, "first_position: 20 does not fit 1 new tokens"),
        ({"text_computed": 10}, r"text_computed: 10 must be in 0\.\.9"),
        ({"audio_computed": -1}, r"audio_computed: -1 must be in 0\.\.9"),
        ({"block_table": [3, 0]}, "block_table: 2 blocks for 10 tokens; expected 3 to 5"),
        ({"block_table": [0, 1, 2, 3, 4, 5]}, "block_table: 6 blocks for 10 tokens"),
        ({"block_table": [3, 0, 8]}, r"block_table: 0\.\.8 leave the 8 blocks"),
        ({"block_table": [3, -1, 7]}, r"block_table: -1\.\.7 leave"),
        ({"block_table": [3, 0, 3]}, "block_table: a block is listed twice"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ExecutorError, match=f"^{named}"):
        check(replace(STEP, **changes))
    with pytest.raises(ExecutorError, match=f"^{named}"):
        check(replace(STEP, block_table=[1, 2, 4]), replace(STEP, **changes))


def test_sampling_is_refused_where_it_is_not_supported() -> None:
    seen = torch.zeros(50, dtype=torch.bool)
    reply = ReplySampling(SamplingParams(), 15, 14, seen, seen)
    sampled = replace(STEP, sampling=SamplingMetadata(reply, 0.5, 0.5, 1, 2, False, False))
    check(sampled, can_sample=True)
    with pytest.raises(ExecutorError, match=r"^sampling: this executor returns logits"):
        check(sampled)


def test_the_blocks_cover_the_token_of_a_step_ahead() -> None:
    seen = torch.zeros(50, dtype=torch.bool)
    ahead = SamplingMetadata(
        ReplySampling(SamplingParams(), 15, 14, seen, seen), 0.5, 0.5, 1, 2, False, False
    )
    check(replace(STEP, ahead=ahead))
    last = replace(STEP, first_position=11, ahead=ahead)
    check(replace(last, block_table=[3, 0, 7, 1]))
    with pytest.raises(ExecutorError, match="block_table: 3 blocks for 13 tokens; expected 4 to 5"):
        check(last)
    with pytest.raises(ExecutorError, match="first_position: 19 does not fit 2 new tokens"):
        check(replace(last, first_position=19, block_table=[3, 0, 7, 1, 2]))


def test_the_number_of_sequences_is_limited() -> None:
    others = [replace(STEP, block_table=[1, 2, 4]), replace(STEP, block_table=[5, 6, 7])]
    for sequences in ((), (STEP, *others)):
        with pytest.raises(ExecutorError, match=f"^sequences: .* 1 to 2 .* got {len(sequences)}"):
            check(*sequences)


def test_sequences_share_blocks_only_where_neither_writes() -> None:
    # Tokens 8 and 9 are written: the deferred audio token, and the new one. They are in the third block.
    check(STEP, replace(STEP, block_table=[3, 0, 4]))
    with pytest.raises(ExecutorError, match="would write to a block of another one"):
        check(STEP, replace(STEP, block_table=[1, 2, 7]))
    with pytest.raises(ExecutorError, match="would write to a block of another one"):
        check(STEP, replace(STEP, audio_computed=3, block_table=[3, 0, 4]))


@pytest.mark.parametrize(
    ("logits", "said"),
    [
        (torch.zeros(4), "only zeros"),
        (torch.tensor([1.0, float("nan"), 0, 0]), "not finite"),
        (torch.tensor([1.0, float("inf"), 0, 0]), "not finite"),
        (torch.ones(5), r"expected float32 \[4\], got torch.float32 \[5\]"),
        (torch.ones(4, dtype=torch.float64), r"expected float32 \[4\], got torch.float64"),
    ],
)
def test_logits_that_cannot_be_a_result_are_refused(logits: torch.Tensor, said: str) -> None:
    check_logits("logits", torch.ones(4), 4)
    with pytest.raises(ExecutorError, match=f"^logits: .*{said}"):
        check_logits("logits", logits, 4)


def test_a_table_that_was_checked_before_is_checked_again_when_it_has_changed() -> None:
    check_next, table, other = BatchCheck(LIMITS, can_sample=False), [3, 0, 7], [1, 2, 4]
    batch = ScheduledBatch((replace(STEP, block_table=table), replace(STEP, block_table=other)))
    for _ in range(2):
        check_next(batch)
    table[2] = 4
    with pytest.raises(ExecutorError, match="a block of another one"):
        check_next(batch)
    table[2] = 3
    with pytest.raises(ExecutorError, match="listed twice"):
        check_next(batch)
    table[2] = 8
    with pytest.raises(ExecutorError, match="leave the 8 blocks"):
        check_next(batch)
