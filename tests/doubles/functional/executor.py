"""An executor that evaluates a described network, so that the paged runtime drives it like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from engine_runtime.bundle.trtllm_checkpoint.checkpoint import CheckpointConfig
from engine_runtime.lm.block_manager import BlockManager
from engine_runtime.lm.executor import StepTensors, step_spec
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.lm.step_check import check_outputs, check_step
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.trtllm.build import build_engine
from engine_runtime.trtllm.build_plan import BuildOptions, plan_build
from tests.doubles.functional import builder, make_library
from tests.doubles.functional.graph import Network


class NetworkExecutor:
    """Gives the network the tensors of a step, and the pool that they point to."""

    supports_deferred_tails = False
    can_sample = False
    requires_block_aligned_prefill = False

    def __init__(self, network: Network, cache: KVCache, config: MossLMConfig, max_seq_len: int) -> None:
        self.network, self.cache = network, cache
        self.limits = cache.limits(config, max_seq_len, max_num_tokens=512)
        self.device = torch.device("cpu")
        self._widths = {"logits": config.text_vocab, "audio_logits": config.audio_vocab}

    @torch.inference_mode()
    def forward(self, tensors: StepTensors) -> dict[str, torch.Tensor]:
        check_step(step_spec(self.limits), self.limits, tensors)
        pool = self.cache.pool
        outputs = self.network.evaluate(dict(tensors), {pool.data_ptr(): pool})
        check_outputs(outputs, self._widths)
        return outputs


def described(checkpoint: Path, directory: Path, options: BuildOptions, **replaced: Any) -> PagedLM:
    """A checkpoint's network as the library (names replaced) builds it, behind the paged runtime.

    The pool has room for one conversation of `options.max_seq_len`.
    """
    engines: list[builder.Engine] = []

    def keep(model: Any, config: Any) -> builder.Engine:
        engines.append(replaced.get("build", builder.build)(model, config))
        return engines[0]

    plan = plan_build(checkpoint, options)
    engine = build_engine(plan, directory, options, make_library(**replaced | {"build": keep})).engine
    return paged_over(engines[0].network, plan.config, engine.tokens_per_block, engine.max_seq_len)


def paged_over(network: Network, config: CheckpointConfig, tokens_per_block: int, rows: int) -> PagedLM:
    """A network behind the paged runtime, with room for so many rows."""
    sizes = config.lm_config(modality_pad=0)
    cache = KVCache(sizes, -(-rows // tokens_per_block), tokens_per_block, dtype=config.torch_dtype)
    executor = NetworkExecutor(network, cache, sizes, rows)
    return PagedLM(executor, cache, BlockManager(cache.num_blocks, tokens_per_block))
