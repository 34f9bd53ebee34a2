"""A checkpoint, plain or quantized, in the torch executor: the reference implementation of the engine.

In: a checkpoint folder. Out: a `FusedNetwork`, or the language model behind the paged runtime. Tensors are
copied from the file to the device one by one. Linear layers may be wrapped, which lets calibration observe
their inputs. Called once, on the thread that will use the result.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine_runtime.bundle.sections import LMSection
from engine_runtime.executors.fused_weights import FusedLayer, FusedNetwork, FusedTail
from engine_runtime.executors.torch.executor import TorchExecutor
from engine_runtime.executors.torch.linear import Linear, packed_linear
from engine_runtime.lm.block_manager import BlockManager
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.paged_lm import PagedLM
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import PREFILL_TOKENS
from engine_runtime.tensorrt.checkpoint.quantized_linear import read_linear
from engine_runtime.tensorrt.checkpoint.reading import Checkpoint

Wrap = Callable[[str, Linear], Linear]
"""Receives the module name and the linear layer; returns the layer to use."""

PRODUCTS = {
    "attention.qkv": ("attention.qkv",),
    "attention.dense": ("attention.dense",),
    "mlp.fc": ("mlp.fc", "mlp.gate"),
    "mlp.proj": ("mlp.proj",),
}
"""The linear layers of a decoder layer, each named after the first of the modules that share its input."""


def load_paged(
    checkpoint: Checkpoint,
    section: LMSection,
    config: MossLMConfig,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    num_blocks: int | None = None,
    prefill_tokens: int | None = None,
    wrap: Wrap | None = None,
) -> PagedLM:
    """The language model of a checkpoint with a KV pool as configured in the bundle's section.

    `dtype` None is that of the checkpoint, `num_blocks` None that of the section. Raises BundleError if the
    checkpoint is of another model than `config`.
    """
    checkpoint.require(config)
    network = read_network(checkpoint, config, device, dtype, wrap)
    num_blocks, size = num_blocks or section.kv_blocks, section.tokens_per_block
    cache = KVCache(config, num_blocks, size, dtype=network.embedding.dtype, device=device)
    most = prefill_tokens or PREFILL_TOKENS
    executor = TorchExecutor(network, cache, max_seq_len=section.context_rows, max_num_tokens=most)
    return PagedLM(executor, cache, BlockManager(num_blocks, size))


def read_network(
    checkpoint: Checkpoint,
    config: MossLMConfig,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    wrap: Wrap | None = None,
) -> FusedNetwork[Linear]:
    """All weights, on the device."""
    read, dtype = checkpoint.reader(), dtype or checkpoint.config.torch_dtype

    def plain(name: str) -> Tensor:
        return read(f"{name}.weight").to(device, dtype, copy=True)

    def product(prefix: str, name: str) -> Linear:
        modules = [f"{prefix}.{module}" for module in PRODUCTS[name]]
        linear = read_linear(checkpoint.config, read, modules, dtype, device)
        return wrap(modules[0], linear) if wrap else linear

    def layers(stack: str, count: int, first: int) -> tuple[FusedLayer[Linear], ...]:
        return tuple(layer(f"{stack}.{index}", first + index) for index in range(count))

    def layer(prefix: str, index: int) -> FusedLayer[Linear]:
        return FusedLayer(
            index=index,
            input_norm=plain(f"{prefix}.input_layernorm"),
            qkv=product(prefix, "attention.qkv"),
            q_norm=plain(f"{prefix}.attention.q_layernorm"),
            k_norm=plain(f"{prefix}.attention.k_layernorm"),
            o=product(prefix, "attention.dense"),
            post_norm=plain(f"{prefix}.post_layernorm"),
            gate_up=product(prefix, "mlp.fc"),
            down=product(prefix, "mlp.proj"),
        )

    def tail(output: str, name: str, head: str, count: int, first: int) -> FusedTail[Linear]:
        linear = packed_linear([plain(head)], "native")
        return FusedTail(output, layers(f"{name}_layers", count, first), plain(f"{name}_norm"), linear)

    shared, text = config.shared_layers, config.text_layers
    with torch.inference_mode():
        return FusedNetwork(
            config=config,
            embedding=plain("vocab_embedding"),
            trunk=layers("shared_layers", shared, 0),
            text=tail("logits", "text", "lm_head", text, shared),
            audio=tail("audio_logits", "audio", "audio_lm_head", config.audio_layers, shared + text),
        )
