"""Scheduled rows and engine tensors of single steps, for tests of an executor without a PagedLM around it."""

from __future__ import annotations

from torch import Tensor

from engine_runtime.lm.block_manager import Sequence
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.lm.step import ScheduledSequence
from engine_runtime.tensorrt.llm.step_tensors import StepInputBuilder


def next_row(paged: PagedLM, sequence: Sequence, ids: list[int]) -> ScheduledSequence:
    """A valid step of `ids` after the rows of `sequence`, its blocks reserved; one id is a decode step."""
    past = sequence.num_tokens
    paged.blocks.reserve(sequence, past, past + len(ids))
    return ScheduledSequence(
        token_ids=ids,
        first_position=past,
        block_table=sequence.block_table,
        text_computed=sequence.text_computed,
        audio_computed=sequence.audio_computed,
        prompt_tokens=sequence.prompt_tokens,
        is_prefill=len(ids) > 1,
    )


def step_tensors(paged: PagedLM, sequence: Sequence, ids: list[int]) -> dict[str, Tensor]:
    """The same step as the tensors of a TensorRT-LLM engine."""
    builder = StepInputBuilder(paged.executor.limits, paged.cache)
    return builder.fill([next_row(paged, sequence, ids)])
