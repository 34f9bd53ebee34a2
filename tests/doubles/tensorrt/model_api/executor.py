"""An executor that evaluates a described network, so that the paged runtime drives it like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from engine_runtime.lm.block_manager import BlockManager
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.lm.step import BatchCheck, ScheduledBatch, StepOutput, check_logits
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.tensorrt.checkpoint.format import CheckpointConfig
from engine_runtime.tensorrt.llm.build import BuildOptions, build_engine, plan_build
from engine_runtime.tensorrt.llm.step_check import check_step
from engine_runtime.tensorrt.llm.step_tensors import StepInputBuilder, packing_order, step_spec
from tests.doubles.tensorrt.model_api import builder, make_library
from tests.doubles.tensorrt.model_api.graph import Network


class NetworkExecutor:
    """Evaluates the network on the tensors of a step, and on the pool that they point to."""

    supports_deferred_tails = False
    can_sample = False
    requires_block_aligned_prefill = False

    def __init__(
        self,
        network: Network,
        cache: KVCache,
        config: MossLMConfig,
        max_seq_len: int,
        max_batch_size: int = 1,
    ) -> None:
        self.network, self.cache = network, cache
        self.limits = cache.limits(config, max_seq_len, 512, max_batch_size)
        self._check = BatchCheck(self.limits, can_sample=self.can_sample)
        self.device = torch.device("cpu")
        self._builder = StepInputBuilder(self.limits, cache)

    @torch.inference_mode()
    def execute(self, batch: ScheduledBatch) -> list[StepOutput]:
        self._check(batch)
        order = packing_order(batch.sequences)
        tensors = self._builder.fill([batch.sequences[index] for index in order])
        check_step(step_spec(self.limits), self.limits, tensors)
        pool = self.cache.pool
        outputs = self.network.evaluate(tensors, {pool.data_ptr(): pool})
        made = []
        for index, scheduled in enumerate(batch.sequences):
            place = order.index(index)
            text, audio = outputs["logits"][place], outputs["audio_logits"][place]
            check_logits("logits", text, self.limits.text_vocab)
            check_logits("audio_logits", audio, self.limits.audio_vocab)
            tails = scheduled.tails
            made.append(StepOutput(text if tails.text else None, audio if tails.audio else None))
        return made


def described(checkpoint: Path, directory: Path, options: BuildOptions, **replaced: Any) -> PagedLM:
    """A checkpoint's network as the library (names replaced) builds it, behind the paged runtime.

    The pool has room for `options.max_batch_size` conversations of `options.max_seq_len`.
    """
    engines: list[builder.Engine] = []

    def keep(model: Any, config: Any) -> builder.Engine:
        engines.append(replaced.get("build", builder.build)(model, config))
        return engines[0]

    plan = plan_build(checkpoint, options)
    engine = build_engine(plan, directory, options, make_library(**replaced | {"build": keep})).engine
    sizes = engine.tokens_per_block, engine.max_seq_len, engine.max_batch_size
    return paged_over(engines[0].network, plan.config, *sizes)


def paged_over(
    network: Network, config: CheckpointConfig, tokens_per_block: int, rows: int, max_batch_size: int = 1
) -> PagedLM:
    """A network under the paged runtime, with a context of this many rows."""
    sizes = config.lm_config(modality_pad=0)
    num_blocks = max_batch_size * -(-rows // tokens_per_block)
    cache = KVCache(sizes, num_blocks, tokens_per_block, dtype=config.torch_dtype, is_block_major=True)
    executor = NetworkExecutor(network, cache, sizes, rows, max_batch_size)
    return PagedLM(executor, cache, BlockManager(cache.num_blocks, tokens_per_block))
