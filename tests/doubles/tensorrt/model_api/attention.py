"""The GPT attention plugin on a paged cache, with the rules of its kernels.

Keys and values are in the memory at host_kv_cache_pool_pointers, at the block offsets; the layer index is
used in the pool mapping and the window sizes. sequence_length determines the positions of new rows. A context
call takes RoPE from the table of the model and reads the cache only with paged-context FMHA; a generation
call takes RoPE from the base of the layer. So an error in either is detected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tests.doubles.tensorrt.model_api.graph import (
    DTYPES,
    AttentionMaskType,
    LayerNormType,
    PositionEmbeddingType,
    Tensor,
    default_net,
)
from tests.doubles.tensorrt.model_api.layers import ColumnLinear, Linear, RmsNorm, RowLinear
from tests.doubles.tensorrt.model_api.module import Module, Parameter
from tests.doubles.tensorrt.paged_cache import attend


@dataclass
class KeyValueCacheParams:
    past_key_value: list[None] | None = None
    host_past_key_value_lengths: Tensor | None = None
    host_max_attention_window_sizes: Tensor | None = None
    host_sink_token_length: Tensor | None = None
    kv_cache_block_offsets: Tensor | None = None
    host_kv_cache_block_offsets: Tensor | None = None
    host_kv_cache_pool_pointers: Tensor | None = None
    host_kv_cache_pool_mapping: Tensor | None = None
    cache_indirection: Tensor | None = None


@dataclass
class AttentionParams:
    sequence_length: Tensor | None = None
    context_lengths: Tensor | None = None
    host_context_lengths: Tensor | None = None
    max_context_length: int | None = None
    host_request_types: Tensor | None = None
    host_runtime_perf_knobs: Tensor | None = None
    host_context_progress: Tensor | None = None
    embed_positions_for_gpt_attention: Tensor | None = None  # filled in from the model, for RoPE


class Attention(Module):
    def __init__(
        self,
        *,
        local_layer_idx: int,
        hidden_size: int,
        num_attention_heads: int,
        num_kv_heads: int | None = None,
        max_position_embeddings: int = 1024,
        attention_head_size: int | None = None,
        qk_layernorm: bool = False,
        layernorm_type: LayerNormType = LayerNormType.LayerNorm,
        eps: float = 1e-05,
        attention_mask_type: AttentionMaskType = AttentionMaskType.padding,
        bias: bool = True,
        dtype: str | None = None,
        position_embedding_type: PositionEmbeddingType = PositionEmbeddingType.learned_absolute,
        rotary_embedding_base: float = 10000.0,
        rotary_embedding_scaling: dict[str, Any] | None = None,
        rotary_embedding_percentage: float = 1.0,
        tp_group: list[int] | None = None,
        tp_size: int = 1,
        quant_mode: object = None,
        dense_bias: bool | None = None,
    ) -> None:
        super().__init__()
        assert attention_mask_type == AttentionMaskType.causal
        assert rotary_embedding_scaling is None
        assert (rotary_embedding_percentage, tp_size) == (1.0, 1)
        self.local_layer_idx = local_layer_idx
        self.heads, self.kv_heads = num_attention_heads, num_kv_heads or num_attention_heads
        self.head_size = attention_head_size or hidden_size // num_attention_heads
        self.rotary_embedding_base = rotary_embedding_base
        self.position_embedding_type = position_embedding_type
        self.dtype = dtype
        width = (self.heads + 2 * self.kv_heads) * self.head_size
        self.qkv: Linear = ColumnLinear(hidden_size, width, bias=bias, dtype=dtype, is_qkv=True)
        dense_bias = bias if dense_bias is None else dense_bias
        self.dense: Linear = RowLinear(self.heads * self.head_size, hidden_size, bias=dense_bias, dtype=dtype)
        self.qk_layernorm = qk_layernorm
        if qk_layernorm:
            assert layernorm_type == LayerNormType.RmsNorm, "this checkpoint has no bias for LayerNorm"
            self.q_layernorm = RmsNorm(self.head_size, eps=eps, dtype=dtype)
            self.k_layernorm = RmsNorm(self.head_size, eps=eps, dtype=dtype)

    @staticmethod
    def create_attention_const_params(model_cls: Module, config: Any) -> None:
        base = getattr(config, "rotary_base", 10000.0)
        assert getattr(config, "rotary_scaling", None) is None
        assert config.position_embedding_type.is_rope()
        table = rotary_table(config.head_size, base, torch.arange(config.max_position_embeddings))
        model_cls.register_parameter(
            "embed_positions_for_gpt_attention", Parameter(table, dtype="float32", is_buffer=True)
        )

    @staticmethod
    def fill_attention_params(model_cls: Any, attention_params: AttentionParams) -> AttentionParams:
        assert model_cls.position_embedding_type.is_rope()
        attention_params.embed_positions_for_gpt_attention = model_cls.embed_positions_for_gpt_attention.value
        return attention_params

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: None = None,
        use_cache: bool = False,
        kv_cache_params: KeyValueCacheParams | None = None,
        attention_params: AttentionParams | None = None,
    ) -> tuple[Tensor, None]:
        assert use_cache
        assert kv_cache_params is not None
        assert attention_params is not None
        assert kv_cache_params.past_key_value is not None
        assert kv_cache_params.past_key_value[0] is None, "a paged cache is no tensor of the network"
        qkv = self.qkv(hidden_states)
        if self.qk_layernorm:
            qkv = self._normalised(qkv)
        plugins = default_net().plugin_config
        assert plugins.gpt_attention_plugin == self.dtype
        assert plugins.paged_kv_cache
        assert plugins.remove_input_padding
        assert plugins.context_fmha
        assert not plugins.use_fp8_context_fmha, "not every layer has the scale that the plugin would expect"
        wanted = vars(kv_cache_params) | vars(attention_params)
        tensors = {name: value for name, value in wanted.items() if isinstance(value, Tensor)}
        absent = wanted.keys() - tensors.keys() - {"past_key_value", "max_context_length"}
        assert not absent, absent
        assert attention_params.max_context_length is not None
        step = PagedAttention(self, plugins.tokens_per_block, plugins.use_paged_context_fmha, list(tensors))
        context = Tensor.made_by(
            step, qkv, *tensors.values(), dtype=qkv.dtype, shape=(-1, self.heads * self.head_size)
        )
        return self.dense(context), None

    def _normalised(self, qkv: Tensor) -> Tensor:
        """Queries and keys normalized per head: the rows are those of q, then of k, then of v."""
        groups = (self.heads, self.kv_heads, self.kv_heads)
        split = []
        for index, heads in enumerate(groups):
            first = sum(groups[:index])
            split.append(
                Tensor.made_by(
                    lambda x, first=first, heads=heads: x.view(len(x), -1, self.head_size)[
                        :, first : first + heads
                    ],
                    qkv,
                    dtype=qkv.dtype,
                    shape=(-1, heads, self.head_size),
                )
            )
        query, key, value = split
        return Tensor.made_by(
            lambda *parts: torch.cat(parts, dim=1).flatten(1),
            self.q_layernorm(query),
            self.k_layernorm(key),
            value,
            dtype=qkv.dtype,
            shape=qkv.shape,
        )


class PagedAttention:
    """The plugin of one layer: called with the values of a step."""

    def __init__(
        self, layer: Attention, tokens_per_block: int, reads_cache_in_context: bool, names: list[str]
    ) -> None:
        self.layer, self.tokens_per_block, self.names = layer, tokens_per_block, names
        self.reads_cache_in_context = reads_cache_in_context
        self.memory = default_net().memory_of

    def __call__(self, qkv: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        """The rows of each sequence: context requests first, then one row of each generation request."""
        step = dict(zip(self.names, values, strict=True))
        types, lengths = step["host_request_types"].tolist(), step["host_context_lengths"].tolist()
        assert types == sorted(types), "context requests come first"
        counts = [length if kind == 0 else 1 for kind, length in zip(types, lengths, strict=True)]
        assert sum(counts) == len(qkv), "a generation request takes one row"
        parts = [self._sequence(part, step, index) for index, part in enumerate(qkv.split(counts))]
        return torch.cat(parts)

    def _sequence(self, qkv: torch.Tensor, step: dict[str, torch.Tensor], sequence: int) -> torch.Tensor:
        layer = self.layer
        is_context = int(step["host_request_types"][sequence]) == 0
        total, num_new = int(step["sequence_length"][sequence]), len(qkv)
        first = total - num_new
        q, k, v = qkv.view(num_new, -1, layer.head_size).split(
            (layer.heads, layer.kv_heads, layer.kv_heads), dim=1
        )
        table = step["embed_positions_for_gpt_attention"]
        if not is_context:
            table = rotary_table(layer.head_size, layer.rotary_embedding_base, torch.arange(total))
        q, k = (_rotated(x.float(), table[first:total]).to(x.dtype) for x in (q, k))
        slots, place = self._pool(step)
        out = attend(
            (q, k, v),
            slots,
            step["kv_cache_block_offsets"][0, sequence].long(),
            first=2 * place,
            positions=torch.arange(first, total),
            total=total,
            longest=int(step["host_past_key_value_lengths"][sequence]) + (0 if is_context else 1),
            window=int(step["host_max_attention_window_sizes"][layer.local_layer_idx]),
            reads_cache=self.reads_cache_in_context or not is_context,
        )
        return out.flatten(1)

    def _pool(self, step: dict[str, torch.Tensor]) -> tuple[torch.Tensor, int]:
        """[number of K or V blocks, kv_heads, tokens_per_block, head_size], and the place of this layer."""
        index, place = step["host_kv_cache_pool_mapping"][self.layer.local_layer_idx].tolist()
        memory = self.memory()[int(step["host_kv_cache_pool_pointers"][index, 0])]
        assert memory.dtype == DTYPES[str(self.layer.dtype)]
        return memory.view(-1, self.layer.kv_heads, self.tokens_per_block, self.layer.head_size), place


def rotary_table(head_size: int, base: float, positions: torch.Tensor) -> torch.Tensor:
    """[positions, 2 (cos, sin), head_size / 2]."""
    inverse = 1.0 / base ** (torch.arange(0, head_size, 2).float() / head_size)
    angles = positions[:, None].float() * inverse
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def _rotated(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """NEOX: the halves of a head turn against each other. x [n, heads, head_size]."""
    cos, sin = table[:, None, 0], table[:, None, 1]
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
