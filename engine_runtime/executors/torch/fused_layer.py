"""The network as the torch executor runs it: fused projections, weights stored as [in, out].

In: a model of models/moss_lm.py. Out: a `FusedNetwork`: one product for q, k and v, one for gate and up, one
embedding table for merged ids. A row times a matrix [in, out] reads memory sequentially, twice as fast on a
CPU as the checkpoint's [out, in]. A weight format (quantization.py) rounds the weights to its levels but does
not reduce their size here. Quantized checkpoints have their own linear layers
(executors/torch/quantized_linear.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor

from engine_runtime.models.moss_lm import Block, Layer, MossLM, MossLMConfig
from engine_runtime.options import BlockFormats, WeightFormat
from engine_runtime.quantization import quantize


class Linear(Protocol):
    """A linear layer, independent of the storage format of its weight."""

    def __call__(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, out]."""

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """The product of x [n, in], added to `residual` [n, out]."""


@dataclass(frozen=True, slots=True)
class DenseLinear:
    """A weight [in, out] in a floating-point dtype."""

    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, out]."""
        return x @ self.weight

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """The product of x [n, in], added to `residual` [n, out]; in float32 in one pass."""
        if x.dtype == torch.float32:
            return torch.addmm(residual, x, self.weight)
        return residual + x @ self.weight


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """One layer. `index` is its index in the KV pool.

    Products: qkv [H -> (heads + 2 kv_heads) * head_dim], o [heads * head_dim -> H], gate_up [H -> 2 I],
    down [I -> H]. qk_norm [heads + kv_heads, head_dim].
    """

    index: int
    input_norm: Tensor
    qkv: Linear
    qk_norm: Tensor
    o: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear


class Tail(NamedTuple):
    """One tail after the trunk: layers, final norm [H], head [H, vocabulary]."""

    layers: list[FusedLayer]
    norm: Tensor
    head: Tensor


@dataclass(frozen=True, slots=True)
class FusedNetwork:
    """All weights of the executor. `tails` are named after their outputs; `embedding` [vocabularies, H]."""

    config: MossLMConfig
    embedding: Tensor
    trunk: list[FusedLayer]
    tails: Mapping[str, Tail]


def fuse(model: MossLM, dtype: torch.dtype, formats: BlockFormats) -> FusedNetwork:
    """Copies of a model's weights, fake-quantized to their formats; the heads are not quantized."""
    config, network = model.config, model.model
    first_text, first_audio = config.shared_layers, config.shared_layers + config.text_layers
    return FusedNetwork(
        config=config,
        embedding=torch.cat((network.embed_tokens.weight, network.audio_embed.weight)).to(dtype),
        trunk=_fuse_block(config, network.shared_block, 0, formats.trunk),
        tails={
            "logits": Tail(
                _fuse_block(config, network.text_block, first_text, formats.tails),
                network.text_norm.weight.detach().clone(),
                model.text_lm_head.weight.t().contiguous(),
            ),
            "audio_logits": Tail(
                _fuse_block(config, network.audio_block, first_audio, formats.tails),
                network.audio_norm.weight.detach().clone(),
                model.audio_lm_head.weight.t().contiguous(),
            ),
        },
    )


def _fuse_block(
    config: MossLMConfig, block: Block, first_index: int, weight_format: WeightFormat
) -> list[FusedLayer]:
    """Fused weights of a stack of layers that owns the KV layers from `first_index` on."""
    return [
        _fuse(config, cast(Layer, layer), first_index + index, weight_format)
        for index, layer in enumerate(block.layers)
    ]


def qk_norms(config: MossLMConfig, q_norm: Tensor, k_norm: Tensor) -> Tensor:
    """Norm weights [head_dim] of queries and of keys, one row for each head."""
    queries = q_norm.expand(config.num_attention_heads, -1)
    return torch.cat((queries, k_norm.expand(config.num_key_value_heads, -1))).detach()


def _fuse(config: MossLMConfig, layer: Layer, index: int, weight_format: WeightFormat) -> FusedLayer:
    attention, mlp = layer.self_attn, layer.mlp
    qkv = (attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight)
    return FusedLayer(
        index=index,
        input_norm=layer.input_layernorm.weight.detach().clone(),
        qkv=_columns(weight_format, *qkv),
        qk_norm=qk_norms(config, attention.q_norm.weight, attention.k_norm.weight),
        o=_columns(weight_format, attention.o_proj.weight),
        post_norm=layer.post_attention_layernorm.weight.detach().clone(),
        gate_up=_columns(weight_format, mlp.gate_proj.weight, mlp.up_proj.weight),
        down=_columns(weight_format, mlp.down_proj.weight),
    )


def _columns(weight_format: WeightFormat, *weights: Tensor) -> DenseLinear:
    """Weights [out, in] concatenated to one contiguous [in, sum of out]."""
    rounded = quantize(torch.cat(weights).detach(), weight_format).dense(weights[0].dtype)
    return DenseLinear(rounded.t().contiguous())
