"""Weights of one decoder layer in the form in which the torch executor multiplies them.

In: a layer of models/moss_lm.py. Out: fused projections, stored [in, out]: one matrix for q, k and v, one for
gate and up. A row times such a matrix reads it in order, which is twice as fast on a CPU as the [out, in] of
the checkpoint. A weight format (cuda/quantise.py) rounds the weights and does not make them smaller here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from engine_runtime.cuda.quantise import quantise
from engine_runtime.models.moss_lm import Block, Layer
from engine_runtime.options import WeightFormat


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """One layer. `index` is its place in the KV pool.

    Shapes: qkv [H, (heads + 2 kv_heads) * head_dim], o [heads * head_dim, H], gate_up [H, 2 I], down [I, H],
    qk_norm [heads + kv_heads, head_dim].
    """

    index: int
    input_norm: Tensor
    qkv: Tensor
    qk_norm: Tensor
    o: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor


def fuse_block(block: Block, first_index: int, weight_format: WeightFormat = "native") -> list[FusedLayer]:
    """Fused weights of a stack of layers that owns the KV layers from `first_index` on."""
    return [
        _fuse(cast(Layer, layer), first_index + index, weight_format)
        for index, layer in enumerate(block.layers)
    ]


def _fuse(layer: Layer, index: int, weight_format: WeightFormat) -> FusedLayer:
    attention, mlp = layer.self_attn, layer.mlp
    q_norm = attention.q_norm.weight.expand(attention.heads, -1)
    k_norm = attention.k_norm.weight.expand(attention.kv_heads, -1)
    qkv = (attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight)
    return FusedLayer(
        index=index,
        input_norm=layer.input_layernorm.weight.detach().clone(),
        qkv=_columns(weight_format, *qkv),
        qk_norm=torch.cat((q_norm, k_norm)).detach(),
        o=_columns(weight_format, attention.o_proj.weight),
        post_norm=layer.post_attention_layernorm.weight.detach().clone(),
        gate_up=_columns(weight_format, mlp.gate_proj.weight, mlp.up_proj.weight),
        down=_columns(weight_format, mlp.down_proj.weight),
    )


def _columns(weight_format: WeightFormat, *weights: Tensor) -> Tensor:
    """Weights [out, in] side by side as one contiguous [in, sum of out]."""
    rounded = quantise(torch.cat(weights).detach(), weight_format).dense(weights[0].dtype)
    return rounded.t().contiguous()
