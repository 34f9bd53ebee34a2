"""An executor that evaluates a described network, so that the paged runtime drives it like any other."""

from __future__ import annotations

import torch

from engine_runtime.lm.block_manager import BlockManager
from engine_runtime.lm.executor import StepTensors, check_outputs, check_step, step_spec
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.models.moss_lm import MossLMConfig
from tests.functional_stand_in.graph import Network


class NetworkExecutor:
    """Gives the network the tensors of a step, and the pool that they point to."""

    can_defer_tails = False
    can_pick = False

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


def make_paged(
    network: Network, config: MossLMConfig, *, num_blocks: int, tokens_per_block: int, max_seq_len: int
) -> PagedLM:
    """The network behind the paged runtime and a fresh pool in its dtype."""
    dtype = torch.bfloat16 if network.plugin_config.dtype == "bfloat16" else torch.float32
    cache = KVCache(config, num_blocks, tokens_per_block, dtype=dtype)
    executor = NetworkExecutor(network, cache, config, max_seq_len)
    return PagedLM(executor, cache, BlockManager(num_blocks, tokens_per_block))
