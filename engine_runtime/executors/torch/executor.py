"""TorchExecutor: the forward step in plain PyTorch, on the CPU or on CUDA.

In: the named tensors of lm/executor.py and the KV pool they address. Out: `logits` and `audio_logits` of the
last row. It is the optimized counterpart of models/moss_lm.py: fused projections, one embedding table read by
merged ids, K/V read from the pool by block offsets. It validates a step as an engine would. A tail may be
skipped (`host_tail_start`); the trunk's output of those rows is kept beside the pool and that tail's K/V is
filled before it is read again, so results do not change. Engine thread; inference only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine_runtime.errors import ExecutorError
from engine_runtime.executors.torch.fused_layer import FusedLayer, FusedNetwork, fuse
from engine_runtime.lm.executor import StepTensors, step_spec
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.step_check import StepMemory, check_outputs, check_step
from engine_runtime.models.moss_lm import MossLM, rotary_tables
from engine_runtime.options import BlockFormats
from engine_runtime.quantization import to_fp8


@dataclass(slots=True)
class _Span:
    """Rows [first, total) of one call: K/V destinations, readable rows, RoPE tables.

    Attributes:
        read: rows of `_heads` that hold the K, then the V of layer 0. [2 * kv_heads * blocks]
        block: offset of the K block of each row, for layer 0. [n]
        slot: position of each row in its block. [n]
        cos, sin: [n, 1, head_dim]; sin has the sign of the half rotation in it.
        mask: [n, total], None if plain causal attention or no mask suffices.
        place: block offset for layer 0 and slot, if there is one row only.
    """

    first: int
    total: int
    read: Tensor
    block: Tensor
    slot: Tensor
    cos: Tensor
    sin: Tensor
    mask: Tensor | None
    place: tuple[int, int] | None


class TorchExecutor:
    """Runs steps of one model over one KV pool.

    Args:
        model: weights, in the dtype and on the device to run in. They are copied into fused form, unless they
            are fused already.
        cache: the pool, on the same device and in the same dtype (keys and values may be fp8).
        max_seq_len: rows of the longest sequence.
        max_num_tokens: rows of the longest single call.
        formats: quantization formats of the weights; None = not quantized.
    """

    supports_deferred_tails = True
    can_sample = False
    requires_block_aligned_prefill = False

    def __init__(
        self,
        model: MossLM | FusedNetwork,
        cache: KVCache,
        *,
        max_seq_len: int,
        max_num_tokens: int = 512,
        formats: BlockFormats | None = None,
    ) -> None:
        config = model.config
        self.config, self.cache = config, cache
        self.device = cache.pool.device
        self.limits = cache.limits(config, max_seq_len, max_num_tokens)
        self._spec, self._memory = step_spec(self.limits), StepMemory()
        dtype = cache.trunk.dtype
        self._has_fp8_cache = cache.pool.dtype != dtype
        with torch.inference_mode():
            network = (
                model if isinstance(model, FusedNetwork) else fuse(model, dtype, formats or BlockFormats())
            )
            self._embedding, self._trunk, self._tails = network.embedding, network.trunk, network.tails
            cos, sin = rotary_tables(config, torch.arange(max_seq_len))
            half = config.head_dim // 2
            sin = torch.cat((-sin[:, :half], sin[:, half:]), dim=-1)
            self._cos, self._sin = (table[:, None].to(self.device, dtype) for table in (cos, sin))
            # One row per K (or V) block of a layer, the unit of block offsets.
            self._blocks = cache.pool.view(-1, *cache.pool.shape[3:])
            # One row per head of such a block.
            self._heads = cache.pool.view(-1, cache.pool.shape[4] * cache.pool.shape[5])
            self._head_index = torch.arange(config.num_key_value_heads, device=self.device)[None, :, None]

    @torch.inference_mode()
    def forward(self, tensors: StepTensors) -> dict[str, Tensor]:
        """See lm/executor.py."""
        lengths = check_step(self._spec, self.limits, tensors, self._memory)
        if int(tensors["host_kv_cache_pool_pointers"][0, 0]) != self.cache.pool.data_ptr():
            raise ExecutorError("host_kv_cache_pool_pointers: not the address of this executor's pool")
        span = self._span(tensors, lengths.past, lengths.total)
        x = F.embedding(tensors["input_ids"].long(), self._embedding)
        for layer in self._trunk:
            x = self._layer(layer, x, span)
        starts = {"logits": lengths.text_start, "audio_logits": lengths.audio_start}
        left_out = [name for name, start in starts.items() if start == lengths.total]
        if left_out:
            self._keep_trunk(x, span)
        outputs = {}
        for name, start in starts.items():
            if name not in left_out:
                outputs[name] = self._tail(name, x, tensors, span, start)
        check_outputs(outputs, self._widths(outputs))
        return outputs

    def close(self) -> None:
        """Nothing to release explicitly."""

    def _widths(self, outputs: dict[str, Tensor]) -> dict[str, int]:
        widths = {"logits": self.limits.text_vocab, "audio_logits": self.limits.audio_vocab}
        return {name: widths[name] for name in outputs}

    def _tail(self, name: str, x: Tensor, tensors: StepTensors, span: _Span, start: int) -> Tensor:
        """Run one tail over rows [start, total); trunk outputs of rows before those in `x` are read from the
        kept ones."""
        layers, norm, head = self._tails[name]
        if start < span.first:
            late = self._span(tensors, start, span.total)
            count = span.first - start
            kept = self.cache.trunk[late.block[:count] // (2 * self.limits.num_layers), late.slot[:count]]
            x, span = torch.cat((kept, x)), late
        for layer in layers:
            x = self._layer(layer, x, span)
        hidden = F.rms_norm(x[-1:], norm.shape, norm, self.config.rms_norm_eps)
        return (hidden @ head).float()

    def _keep_trunk(self, x: Tensor, span: _Span) -> None:
        self.cache.trunk[span.block // (2 * self.limits.num_layers), span.slot] = x

    def _span(self, tensors: StepTensors, first: int, total: int) -> _Span:
        size = self.limits.tokens_per_block
        offsets = tensors["kv_cache_block_offsets"][0, 0, :, : -(-total // size)].long()
        rows = torch.arange(first, total, device=self.device)
        mask, place = None, None
        if total - first == 1:
            host_offsets = tensors["host_kv_cache_block_offsets"]
            place = int(host_offsets[0, 0, 0, first // size]), first % size
        elif first > 0:
            mask = torch.arange(total, device=self.device)[None, :] <= rows[:, None]
        return _Span(
            first=first,
            total=total,
            read=(offsets[:, None] * self.config.num_key_value_heads + self._head_index).reshape(-1),
            block=offsets[0, rows // size],
            slot=rows % size,
            cos=self._cos[first:total],
            sin=self._sin[first:total],
            mask=mask,
            place=place,
        )

    def _layer(self, layer: FusedLayer, x: Tensor, span: _Span) -> Tensor:
        config = self.config
        h = F.rms_norm(x, layer.input_norm.shape, layer.input_norm, config.rms_norm_eps)
        attended = self._attention(layer, layer.qkv(h).view(x.shape[0], -1, config.head_dim), span)
        x = layer.o.added_to(x, attended)
        h = F.rms_norm(x, layer.post_norm.shape, layer.post_norm, config.rms_norm_eps)
        gate, up = layer.gate_up(h).chunk(2, dim=-1)
        return layer.down.added_to(x, F.silu(gate).mul_(up))

    def _attention(self, layer: FusedLayer, qkv: Tensor, span: _Span) -> Tensor:
        """qkv [n, heads + 2 * kv_heads, head_dim] -> [n, heads * head_dim]; writes K/V of the n rows to the
        pool."""
        config = self.config
        num_heads, num_kv = config.num_attention_heads, config.num_key_value_heads
        qk, v = qkv[:, : num_heads + num_kv], qkv[:, num_heads + num_kv :]
        qk = F.rms_norm(qk, (config.head_dim,), None, config.rms_norm_eps).mul_(layer.qk_norm)
        qk = (qk * span.cos).addcmul_(qk.roll(config.head_dim // 2, -1), span.sin)
        q, k = qk[:, :num_heads], qk[:, num_heads:]
        offset, num_rows = 2 * layer.index, qk.shape[0]
        if self._has_fp8_cache:
            k, v = to_fp8(k), to_fp8(v)
        if span.place is not None:
            block, slot = span.place[0] + offset, span.place[1]
            self._blocks[block : block + 2, :, slot] = torch.cat((k, v))
        else:
            block_index = span.block + offset
            self._blocks[block_index, :, span.slot] = k
            self._blocks[block_index + 1, :, span.slot] = v
        if span.first == 0 and num_rows > 1:
            keys, values = k.to(q.dtype).transpose(0, 1)[None], v.to(q.dtype).transpose(0, 1)[None]
        else:
            keys, values = self._read(span, offset)
        if num_rows == 1:
            # The query heads of one K/V head become query rows: all attend to the same keys, without a mask.
            grouped = q.view(1, num_kv, num_heads // num_kv, config.head_dim)
            return F.scaled_dot_product_attention(grouped, keys, values).reshape(1, -1)
        heads = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            keys,
            values,
            attn_mask=span.mask,
            is_causal=span.mask is None,
            enable_gqa=True,
        )
        return heads[0].transpose(0, 1).reshape(num_rows, -1)

    def _read(self, span: _Span, offset: int) -> tuple[Tensor, Tensor]:
        """K and V [1, kv_heads, total, head_dim] of one layer."""
        num_kv, dim = self.config.num_key_value_heads, self.config.head_dim
        rows = self._heads.index_select(0, span.read + offset * num_kv).to(self.cache.trunk.dtype)
        both = rows.view(2, 1, num_kv, -1, dim)[:, :, :, : span.total]
        return both[0], both[1]
