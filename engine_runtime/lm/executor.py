"""The executor interface: inputs and outputs of one forward step, for every backend.

An executor takes a dict of named tensors, exactly those of a TensorRT-LLM 1.x engine (gpt_attention_plugin,
paged KV cache, packed input), and returns `logits` and `audio_logits` of the last row. `step_spec` declares
every tensor, and lm/step_check.py rejects a step that does not match the declaration and a result that cannot
be valid. So the executor in plain PyTorch tests all code that prepares an engine call. Engine thread.

An executor may also sample the next ids itself (`SamplingExecutor`); lm/generation.py decides which ids are
allowed and which channel is active.

Batch 1, beam 1. n = new rows in this call, p = rows already in the cache, W = longest sequence, L = layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from engine_runtime.lm.sampling_metadata import SampledIds, SamplingMetadata

CONTEXT, GENERATION = 0, 1
"""Values of `host_request_types`: rows of a prompt (prefill), or one sampled row (decode)."""

StepTensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class ExecutorLimits:
    """Size limits of a step; for an engine they are fixed at build time."""

    text_vocab: int
    audio_vocab: int
    num_layers: int
    num_blocks: int
    tokens_per_block: int
    max_seq_len: int
    max_num_tokens: int

    @property
    def max_blocks(self) -> int:
        """Number of blocks of the longest sequence."""
        return -(-self.max_seq_len // self.tokens_per_block)


class Executor(Protocol):
    """Runs one forward step over named tensors and a KV pool that it shares with the caller."""

    limits: ExecutorLimits
    device: torch.device
    supports_deferred_tails: bool
    """Whether `host_tail_start` is supported: a tail may be skipped and filled later."""
    can_sample: bool
    """Whether this is a SamplingExecutor."""
    requires_block_aligned_prefill: bool
    """Whether a prefill must start at a block boundary of the cache."""

    def forward(self, tensors: StepTensors) -> dict[str, Tensor]:
        """Run the step, write K/V of the new rows; returns `logits` [1, text_vocab] and `audio_logits` [1,
        audio_vocab] of the last row in float32 (none for a skipped tail). Raises ExecutorError if a tensor
        does not match its declaration, or if the result is not finite."""

    def close(self) -> None:
        """Release all resources; no step can be run afterwards."""


class SamplingExecutor(Executor, Protocol):
    """An executor that samples the next ids on its device, so that the logits need not leave it."""

    def forward_and_sample(self, tensors: StepTensors, request: SamplingMetadata) -> SampledIds:
        """Run the step as `forward` does and sample from its logits. Errors as there."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One named input. `shape` holds fixed sizes; None = variable (n rows)."""

    name: str
    dtype: torch.dtype
    place: Literal["device", "host"]
    shape: tuple[int | None, ...]
    optional: bool = False


def step_spec(limits: ExecutorLimits) -> tuple[TensorSpec, ...]:
    """Every input of a forward step; lm/step.py, which fills them, documents the values."""
    i32, i64 = torch.int32, torch.int64
    layers, blocks = limits.num_layers, limits.max_blocks
    return (
        TensorSpec("input_ids", i32, "device", (None,)),
        TensorSpec("position_ids", i32, "device", (None,)),
        TensorSpec("last_token_ids", i32, "device", (1,)),
        TensorSpec("sequence_length", i32, "device", (1,)),
        TensorSpec("context_lengths", i32, "device", (1,)),
        TensorSpec("host_context_lengths", i32, "host", (1,)),
        TensorSpec("host_past_key_value_lengths", i32, "host", (1,)),
        TensorSpec("host_request_types", i32, "host", (1,)),
        TensorSpec("kv_cache_block_offsets", i32, "device", (1, 1, 2, blocks)),
        TensorSpec("host_kv_cache_block_offsets", i32, "host", (1, 1, 2, blocks)),
        TensorSpec("host_kv_cache_pool_pointers", i64, "host", (1, 2)),
        TensorSpec("host_kv_cache_pool_mapping", i32, "host", (layers, 2)),
        TensorSpec("host_max_attention_window_sizes", i32, "host", (layers,)),
        TensorSpec("host_sink_token_length", i32, "host", (1,)),
        TensorSpec("cache_indirection", i32, "device", (1, 1, limits.max_seq_len)),
        TensorSpec("host_runtime_perf_knobs", i64, "host", (16,)),
        TensorSpec("host_context_progress", i64, "host", (1,)),
        TensorSpec("host_tail_start", i32, "host", (2,), optional=True),
    )
