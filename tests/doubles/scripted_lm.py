"""A scripted executor, so that replies of any shape can be tested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar, overload

import torch
from torch import Tensor

from engine_runtime.engine import Engine
from engine_runtime.lm.block_manager import BlockManager
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.lm.step import (
    BatchCheck,
    Executor,
    ExecutorLimits,
    ReplySampling,
    SampledIds,
    ScheduledBatch,
    StepOutput,
)


@dataclass
class ScriptedExecutor:
    """Each step is checked as by a real executor; the row that is sampled next is `script[step]`.

    A script is a list of (text id, audio id); a prefill begins it, each decode step continues, the last entry
    stays. `before_step` is called with the index of the step.
    """

    limits: ExecutorLimits
    script: list[tuple[int, int]]
    before_step: Callable[[int], None] = lambda step: None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    supports_deferred_tails: bool = True
    can_sample: bool = False
    requires_block_aligned_prefill: bool = False
    step: int = 0

    def execute(self, batch: ScheduledBatch) -> list[StepOutput]:
        text, audio = self.next_row(batch)
        tails = batch.sequences[0].tails
        return [
            StepOutput(
                one_hot(text, self.limits.text_vocab) if tails.text else None,
                one_hot(audio, self.limits.audio_vocab) if tails.audio else None,
            )
        ]

    def next_row(self, batch: ScheduledBatch) -> tuple[int, int]:
        BatchCheck(self.limits, can_sample=self.can_sample)(batch)
        self.step = 0 if batch.sequences[0].is_prefill else self.step + 1
        self.before_step(self.step)
        return self.script[min(self.step, len(self.script) - 1)]

    def is_in_flight(self, reply: ReplySampling) -> bool:
        return False

    def close(self) -> None: ...


@dataclass
class SamplingScript(ScriptedExecutor):
    """Returns ids instead of logits; `exclusive_gpu` collects what it was given for each decode step."""

    can_sample: bool = True
    exclusive_gpu: list[bool] = field(default_factory=list)

    def execute(self, batch: ScheduledBatch) -> list[StepOutput]:
        scheduled = batch.sequences[0]
        if scheduled.sampling is None:
            return super().execute(batch)
        text, audio = self.next_row(batch)
        if not scheduled.is_prefill:
            self.exclusive_gpu.append(batch.exclusive_gpu)
        tails = scheduled.tails
        ids = SampledIds(text if tails.text else None, audio if tails.audio else None)
        return [StepOutput(None, None, ids)]


def one_hot(index: int, size: int) -> Tensor:
    """Logits [size] with one clear favourite."""
    logits = torch.zeros(size)
    logits[index] = 5.0
    return logits


Script = TypeVar("Script", bound=ScriptedExecutor)


@overload
def scripted(engine: Engine, script: list[tuple[int, int]]) -> tuple[Engine, ScriptedExecutor]: ...
@overload
def scripted(engine: Engine, script: list[tuple[int, int]], kind: type[Script]) -> tuple[Engine, Script]: ...
def scripted(
    engine: Engine, script: list[tuple[int, int]], kind: type[ScriptedExecutor] = ScriptedExecutor
) -> tuple[Engine, ScriptedExecutor]:
    """The engine with a script and a pool of its own as language model; codec and prompt stay."""
    executor = kind(engine.stages.lm.executor.limits, script)
    return with_executor(engine, executor), executor


def with_executor(engine: Engine, executor: Executor) -> Engine:
    """The engine with this executor over a pool of its own."""
    limits = executor.limits
    cache = KVCache(engine.stages.lm_config, limits.num_blocks, limits.tokens_per_block)
    blocks = BlockManager(limits.num_blocks, limits.tokens_per_block)
    return Engine(replace(engine.stages, lm=PagedLM(executor, cache, blocks)), engine.timing)
