"""An executor that says what a script tells it to, so that replies of any shape can be tested."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from engine_runtime.engine import Engine
from engine_runtime.lm.block_manager import BlockManager
from engine_runtime.lm.executor import GENERATION, ExecutorLimits, step_spec
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.lm.sampling_metadata import SampledIds, SamplingMetadata
from engine_runtime.lm.step_check import check_step


@dataclass
class ScriptedExecutor:
    """Each step is checked as by a real executor; the row that is sampled next is `script[step]`.

    A script is a list of (text id, audio id); a prefill begins it, each decode step goes on, the last entry
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

    def forward(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        lengths = check_step(step_spec(self.limits), self.limits, tensors)
        self.step = self.step + 1 if int(tensors["host_request_types"]) == GENERATION else 0
        self.before_step(self.step)
        text, audio = self.script[min(self.step, len(self.script) - 1)]
        outputs = {}
        if lengths.text_start < lengths.total:
            outputs["logits"] = one_hot(text, self.limits.text_vocab)
        if lengths.audio_start < lengths.total:
            outputs["audio_logits"] = one_hot(audio, self.limits.audio_vocab)
        return outputs

    def close(self) -> None: ...


@dataclass
class SamplingScript(ScriptedExecutor):
    """Gives ids instead of logits; `exclusive_gpu` collects what it was given for each decode step."""

    can_sample: bool = True
    exclusive_gpu: list[bool] = field(default_factory=list)

    def forward_and_sample(self, tensors: Mapping[str, Tensor], request: SamplingMetadata) -> SampledIds:
        outputs = self.forward(tensors)
        if int(tensors["host_request_types"]) == GENERATION:
            self.exclusive_gpu.append(request.exclusive_gpu)
        text, audio = self.script[min(self.step, len(self.script) - 1)]
        return SampledIds(text if "logits" in outputs else None, audio if "audio_logits" in outputs else None)


def one_hot(index: int, size: int) -> Tensor:
    """Logits [1, size] with one clear favourite."""
    logits = torch.zeros(1, size)
    logits[0, index] = 5.0
    return logits


Script = TypeVar("Script", bound=ScriptedExecutor)


def scripted(
    engine: Engine,
    script: list[tuple[int, int]],
    kind: type[Script] = ScriptedExecutor,  # type: ignore[assignment]
) -> tuple[Engine, Script]:
    """The engine with a script and a pool of its own as language model; codec and prompt stay."""
    lm, config = engine.stages.lm, engine.stages.lm_config
    limits = lm.executor.limits
    executor = kind(limits, script)
    cache = KVCache(config, limits.num_blocks, limits.tokens_per_block)
    blocks = BlockManager(limits.num_blocks, limits.tokens_per_block)
    return Engine(replace(engine.stages, lm=PagedLM(executor, cache, blocks)), engine.timing), executor
