"""Computation of a TensorRT-LLM engine of the language model, from its bound memory only.

It follows the GPT attention plugin, not our runtime: rotations come from `sequence_length` and not from
`position_ids`, K and V are addressed each by its own offset in units of a block of one layer, the layer adds
its own term, sizes of grids come from the host and lengths from the device, the row for the heads is counted
from 1. Nothing is checked here that the plugin does not check. Weights are those of the plain network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from engine_runtime.models.moss_lm import Layer, MossLM, rotary_tables, rotate


@dataclass
class Build:
    """How an engine was built.

    Attributes:
        has_pools: 1.x: block tables with a pool axis, a pool mapping, context progress.
        paged_context_fmha: a prefill reads the cache; without, only its own rows.
        gathers_last_row: heads see the last row only.
        layer_indices: the index that each layer was given, trunk, text, audio; None: 0, 1, 2 ...
        linearised: the share of the text tail that leaks into the audio tail's input.
    """

    model: MossLM
    tokens_per_block: int
    has_pools: bool = True
    paged_context_fmha: bool = True
    gathers_last_row: bool = True
    layer_indices: list[int] | None = None
    linearised: float = 0.0
    table: Tensor = field(init=False)

    def __post_init__(self) -> None:
        network = self.model.model
        self.table = torch.cat((network.embed_tokens.weight, network.audio_embed.weight)).detach()
        if self.layer_indices is None:
            self.layer_indices = list(range(self.model.config.num_layers))


@dataclass
class _Call:
    """One call: views of device memory, and values of the host as they were when it was enqueued."""

    device: Mapping[str, Tensor]
    host: Mapping[str, Tensor]
    slots: Tensor
    """[K or V blocks of a layer each, kv_heads, tokens_per_block, head_dim], all that the pool has."""


def compute(
    build: Build, device: Mapping[str, Tensor], host: Mapping[str, Tensor], slots: Tensor
) -> dict[str, Tensor]:
    """Run the rows: K and V into `slots`, logits of both heads as the result."""
    call, network = _Call(device, host, slots), build.model.model
    indices = iter(build.layer_indices or ())
    x = F.embedding(device["input_ids"].long(), build.table)
    for layer in network.shared_block.layers:
        x = _layer(build, layer, next(indices), x, call)
    text = audio = x
    for layer in network.text_block.layers:
        text = _layer(build, layer, next(indices), text, call)
    audio = audio + build.linearised * text
    for layer in network.audio_block.layers:
        audio = _layer(build, layer, next(indices), audio, call)
    if build.gathers_last_row:
        last = device["last_token_ids"].long() - 1
        text, audio = text.index_select(0, last), audio.index_select(0, last)
    return {
        "logits": build.model.text_lm_head(network.text_norm(text)),
        "audio_logits": build.model.audio_lm_head(network.audio_norm(audio)),
    }


def _layer(build: Build, layer: Layer, index: int, x: Tensor, call: _Call) -> Tensor:
    x = x + layer.self_attn.o_proj(_attention(build, layer, index, layer.input_layernorm(x), call))
    return x + layer.mlp(layer.post_attention_layernorm(x))


def _attention(build: Build, layer: Layer, index: int, h: Tensor, call: _Call) -> Tensor:
    attention, config, size = layer.self_attn, build.model.config, build.tokens_per_block
    device, host = call.device, call.host
    num_rows, dim = h.shape[0], config.head_dim
    is_context = int(host["host_request_types"][0]) == 0
    num_queries = device["context_lengths"] if is_context else torch.ones_like(device["context_lengths"])
    total = device["sequence_length"]
    positions = total - num_queries + torch.arange(num_rows, device=h.device)
    cos, sin = rotary_tables(config, positions)
    q = attention.q_norm(attention.q_proj(h).view(num_rows, -1, dim)).transpose(0, 1)
    k = attention.k_norm(attention.k_proj(h).view(num_rows, -1, dim)).transpose(0, 1)
    v = attention.v_proj(h).view(num_rows, -1, dim)
    q, k = rotate(q, cos, sin), rotate(k, cos, sin).transpose(0, 1)

    table = device["kv_cache_block_offsets"].view(2, -1).long()
    first = 2 * (int(host["host_kv_cache_pool_mapping"][index, 1]) if build.has_pools else index)
    window = int(host["host_max_attention_window_sizes"][index])
    for new, offsets in ((k, table[0]), (v, table[1])):
        call.slots[offsets[positions.long() // size] + first, :, positions.long() % size] = new.to(
            call.slots.dtype
        )
    if is_context and not build.paged_context_fmha:
        keys, values, rows = k, v, positions
    else:
        past = int(host["host_past_key_value_lengths"][0])
        rows = torch.arange(past if is_context else past + 1, device=h.device)
        keys = call.slots[table[0][rows // size] + first, :, rows % size].to(h.dtype)
        values = call.slots[table[1][rows // size] + first, :, rows % size].to(h.dtype)
    seen = (rows <= positions[:, None]) & (rows > positions[:, None] - window) & (rows < total)
    out = F.scaled_dot_product_attention(
        q[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        attn_mask=seen[None, None],
        enable_gqa=True,
    )
    return out[0].transpose(0, 1).reshape(num_rows, -1)
