"""The executor interface: one forward step over a KV pool, for every backend.

In: a `ScheduledBatch` (lm/step.py). Out: a `StepOutput` per sequence; K/V of the new tokens are in the pool.
Three executors implement it: executors/torch (the reference), executors/cuda and tensorrt/llm. `limits`
says how many sequences each runs per step. lm/generation.py decides which ids are allowed and which channel
is active. Engine thread.
"""

from __future__ import annotations

from typing import Protocol

import torch

from engine_runtime.lm.sampling_metadata import ReplySampling
from engine_runtime.lm.step import ExecutorLimits, ScheduledBatch, StepOutput


class Executor(Protocol):
    """Runs forward steps over a KV pool that it shares with the caller."""

    limits: ExecutorLimits
    device: torch.device
    """Device of the logits."""
    supports_deferred_tails: bool
    """Whether a tail may be skipped and filled later."""
    can_sample: bool
    """Whether the next ids can be sampled on the device."""
    requires_block_aligned_prefill: bool
    """Whether a prefill must start at a block boundary of the cache."""

    def execute(self, batch: ScheduledBatch) -> list[StepOutput]:
        """Run the step; one output per sequence, in order.

        Raises ExecutorError if the batch does not fit this executor or a result is not finite; what was
        written to the pool is then overwritten by the next step.
        """

    def is_in_flight(self, reply: ReplySampling) -> bool:
        """Whether the next step of this reply is already in flight. If it is what `execute` is asked for
        next, alone or with others in flight, its results are taken; any other step drops what is in flight.

        A dropped step still writes K/V of its tokens, perhaps into blocks that were freed meanwhile. That
        changes no position that is ever read, as whoever writes to such a block does so later on the same
        stream.
        """

    def close(self) -> None:
        """Release all resources; no step can be run afterwards."""
