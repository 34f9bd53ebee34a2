"""TorchExecutor: the forward step in plain PyTorch, on the CPU or on CUDA, for any number of sequences.

In: a ScheduledBatch (lm/step.py) and the KV pool. Out: logits of the last row of each sequence. It is the
optimized counterpart of models/moss_lm.py: fused projections, one embedding table read by merged ids, K/V
read from the pool by block table. The rows of all sequences go through the matrix products together;
attention runs per sequence. A tail may be skipped; the trunk's output of those rows is kept beside the pool
and that tail's K/V is filled before it is read again, so results do not change. Engine thread; inference
only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from engine_runtime.executors.fused_weights import (
    FusedLayer,
    FusedNetwork,
    FusedTail,
    fuse,
    signed_rotary_tables,
)
from engine_runtime.executors.torch.linear import DenseLinear, Linear, packed_linear
from engine_runtime.executors.torch.single_row import SingleRow, fold_norms
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.step import (
    BatchCheck,
    ReplySampling,
    ScheduledBatch,
    StepOutput,
    check_logits,
    logits_output,
)
from engine_runtime.models.moss_lm import MossLM, MossLMConfig
from engine_runtime.options import PREFILL_TOKENS, BlockFormats
from engine_runtime.quantization import to_fp8

MAX_BATCH_SIZE = 64


@dataclass(slots=True)
class _Span:
    """Rows [first, total) of one sequence: K/V destinations, readable rows, RoPE tables.

    Attributes:
        read: rows of `_heads` that hold the K, then the V of layer 0. [2 * kv_heads * blocks]
        block: index of the K block of each row, for layer 0. [n]
        slot: position of each row in its block. [n]
        cos, sin: [n, 1, head_dim]; sin has the sign of the half rotation in it.
        mask: [n, total], None if plain causal attention or no mask suffices.
        place: K block for layer 0 and slot, if there is one row only.
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

    @property
    def num_rows(self) -> int:
        """Rows of the span."""
        return self.total - self.first


@dataclass(slots=True)
class _Packed:
    """Spans of one or more sequences, and what their rows x [n, H] share, in the same order."""

    spans: list[_Span]
    cos: Tensor
    sin: Tensor
    sizes: list[int]

    @classmethod
    def of(cls, spans: list[_Span]) -> _Packed:
        """Pack the rows of `spans` one after the other."""
        sizes = [span.num_rows for span in spans]
        if len(spans) == 1:
            return cls(spans, spans[0].cos, spans[0].sin, sizes)
        return cls(
            spans, torch.cat([span.cos for span in spans]), torch.cat([span.sin for span in spans]), sizes
        )


class TorchExecutor:
    """Runs steps of one model over one KV pool, of up to MAX_BATCH_SIZE sequences.

    Args:
        model: weights, in the dtype and on the device to run in. They are copied into fused form, unless they
            are fused already.
        cache: the pool, on the same device and in the same dtype (keys and values may be fp8).
        max_seq_len: rows of the longest sequence.
        max_num_tokens: new rows of a sequence in one step.
        formats: quantization formats of the weights; None = not quantized.
    """

    supports_deferred_tails = True
    can_sample = False
    requires_block_aligned_prefill = False

    def __init__(
        self,
        model: MossLM | FusedNetwork[Linear],
        cache: KVCache,
        *,
        max_seq_len: int,
        max_num_tokens: int = PREFILL_TOKENS,
        formats: BlockFormats | None = None,
    ) -> None:
        config = model.config
        self.config, self.cache = config, cache
        self.device = cache.pool.device
        self.limits = cache.limits(config, max_seq_len, max_num_tokens, MAX_BATCH_SIZE)
        self._check = BatchCheck(self.limits, can_sample=self.can_sample)
        self._offset_stride = cache.block_stride
        dtype = cache.trunk.dtype
        self._has_fp8_cache = cache.pool.dtype != dtype
        dense: FusedNetwork[DenseLinear] | None = None
        with torch.inference_mode():
            if not isinstance(model, FusedNetwork):
                dense = _fused(model, formats or BlockFormats(), dtype, self.device)
                model = cast(FusedNetwork[Linear], dense)
            self.network = model
            layers = (*model.trunk, *model.text.layers, *model.audio.layers)
            self._qk_norms = [_qk_norm(config, layer) for layer in layers]
            """Norms of q and k by the layer's index in the KV pool; None in a network without them."""
            tables = signed_rotary_tables(config, max_seq_len, dtype, self.device)
            self._cos, self._sin = (table[:, None] for table in tables)
            # One row per K (or V) block of a layer, the unit of block offsets.
            self._blocks = cache.blocks
            # One row per head of such a block.
            self._heads = cache.blocks.flatten(0, 1).flatten(1)
            self._head_index = torch.arange(config.num_key_value_heads, device=self.device)[None, :, None]
            self._single_row: SingleRow | None = None
            if dense is not None and self.device.type == "cpu" and cache.pool.dtype == dtype == torch.float32:
                fold_norms(dense)
                norms = [norm for norm in self._qk_norms if norm is not None]
                stacked = torch.stack(norms) if norms else None
                self._single_row = SingleRow(dense, cache, stacked, self._cos, self._sin)

    @torch.inference_mode()
    def execute(self, batch: ScheduledBatch) -> list[StepOutput]:
        self._check(batch)
        if self._single_row is not None and self._single_row.accepts(batch):
            found = self._single_row.run(batch.sequences[0])
            return [logits_output(found.text_logits, found.audio_logits, self.limits)]
        spans = [
            self._span(scheduled.block_table, scheduled.first_position, scheduled.num_tokens)
            for scheduled in batch.sequences
        ]
        packed = _Packed.of(spans)
        ids = [token_id for scheduled in batch.sequences for token_id in scheduled.token_ids]
        x = F.embedding(torch.tensor(ids, device=self.device), self.network.embedding)
        for layer in self.network.trunk:
            x = self._layer(layer, x, packed)
        rows = x.split(packed.sizes)
        for scheduled, span, x_of in zip(batch.sequences, spans, rows, strict=True):
            if not (scheduled.tails.text and scheduled.tails.audio):
                self._keep_trunk(x_of, span)
        text = [s.text_computed if s.tails.text else None for s in batch.sequences]
        audio = [s.audio_computed if s.tails.audio else None for s in batch.sequences]
        text_logits = self._tail(self.network.text, self.limits.text_vocab, batch, spans, rows, text)
        audio_logits = self._tail(self.network.audio, self.limits.audio_vocab, batch, spans, rows, audio)
        return [StepOutput(*pair) for pair in zip(text_logits, audio_logits, strict=True)]

    def is_in_flight(self, reply: ReplySampling) -> bool:
        """Steps do not overlap: each begins with ids that are sampled from logits on the host."""
        return False

    def close(self) -> None:
        """Nothing to release explicitly."""

    def _tail(
        self,
        tail: FusedTail[Linear],
        vocab: int,
        batch: ScheduledBatch,
        spans: list[_Span],
        rows: Sequence[Tensor],
        starts: list[int | None],
    ) -> list[Tensor | None]:
        """Run one tail of the sequences whose start is not None, from that row on; trunk outputs of rows
        before those of the step are read from the kept ones. Returns the logits [vocab] of each sequence."""
        logits: list[Tensor | None] = [None] * len(starts)
        running = [index for index, start in enumerate(starts) if start is not None]
        if not running:
            return logits
        inputs, extended = [], []
        for index in running:
            x, span, start = rows[index], spans[index], starts[index]
            assert start is not None
            if start < span.first:
                late = self._span(batch.sequences[index].block_table, start, span.total)
                count = span.first - start
                kept = self.cache.trunk[late.block[:count] // self._offset_stride, late.slot[:count]]
                x, span = torch.cat((kept, x)), late
            inputs.append(x)
            extended.append(span)
        packed, norm = _Packed.of(extended), tail.norm
        x = inputs[0] if len(inputs) == 1 else torch.cat(inputs)
        for layer in tail.layers:
            x = self._layer(layer, x, packed)
        last = x[-1:] if len(inputs) == 1 else torch.cat([one[-1:] for one in x.split(packed.sizes)])
        hidden = F.rms_norm(last, norm.shape, norm, self.config.rms_norm_eps)
        for index, values in zip(running, tail.head(hidden).float(), strict=True):
            check_logits(tail.output, values, vocab)
            logits[index] = values
        return logits

    def _keep_trunk(self, x: Tensor, span: _Span) -> None:
        self.cache.trunk[span.block // self._offset_stride, span.slot] = x

    def _span(self, block_table: Sequence[int], first: int, total: int) -> _Span:
        size, stride = self.limits.tokens_per_block, self._offset_stride
        blocks = torch.tensor(block_table[: -(-total // size)], device=self.device) * stride
        rows = torch.arange(first, total, device=self.device)
        mask, place = None, None
        if total - first == 1:
            place = block_table[first // size] * stride, first % size
        elif first > 0:
            mask = torch.arange(total, device=self.device)[None, :] <= rows[:, None]
        offsets = torch.stack((blocks, blocks + 1))
        return _Span(
            first=first,
            total=total,
            read=(offsets[:, None] * self.config.num_key_value_heads + self._head_index).reshape(-1),
            block=blocks[rows // size],
            slot=rows % size,
            cos=self._cos[first:total],
            sin=self._sin[first:total],
            mask=mask,
            place=place,
        )

    def _layer(self, layer: FusedLayer[Linear], x: Tensor, packed: _Packed) -> Tensor:
        config = self.config
        h = F.rms_norm(x, layer.input_norm.shape, layer.input_norm, config.rms_norm_eps)
        attended = self._attention(layer, layer.qkv(h).view(x.shape[0], -1, config.head_dim), packed)
        x = layer.o.added_to(x, attended)
        h = F.rms_norm(x, layer.post_norm.shape, layer.post_norm, config.rms_norm_eps)
        gate, up = layer.gate_up(h).chunk(2, dim=-1)
        return layer.down.added_to(x, F.silu(gate).mul_(up))

    def _attention(self, layer: FusedLayer[Linear], qkv: Tensor, packed: _Packed) -> Tensor:
        """qkv [n, heads + 2 * kv_heads, head_dim] -> [n, heads * head_dim]; writes K/V of the n rows to the
        pool."""
        config = self.config
        num_heads, num_kv = config.num_attention_heads, config.num_key_value_heads
        qk, v = qkv[:, : num_heads + num_kv], qkv[:, num_heads + num_kv :]
        norm = self._qk_norms[layer.index]
        if norm is not None:
            qk = F.rms_norm(qk, (config.head_dim,), None, config.rms_norm_eps).mul_(norm)
        qk = (qk * packed.cos).addcmul_(qk.roll(config.head_dim // 2, -1), packed.sin)
        q, k = qk[:, :num_heads], qk[:, num_heads:]
        if self._has_fp8_cache:
            k, v = to_fp8(k), to_fp8(v)
        if len(packed.spans) == 1:
            return self._attend(q, k, v, packed.spans[0], self.cache.layer_offset(layer.index))
        parts = zip(
            q.split(packed.sizes), k.split(packed.sizes), v.split(packed.sizes), packed.spans, strict=True
        )
        offset = self.cache.layer_offset(layer.index)
        return torch.cat([self._attend(*part, offset) for part in parts])

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, span: _Span, offset: int) -> Tensor:
        """Write k and v [n, kv_heads, head_dim] of one sequence, then attend with q [n, heads, head_dim]."""
        config = self.config
        num_heads, num_kv, num_rows = config.num_attention_heads, config.num_key_value_heads, q.shape[0]
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


def _fused(
    model: MossLM, formats: BlockFormats, dtype: torch.dtype, device: torch.device
) -> FusedNetwork[DenseLinear]:
    """Copies of a model's weights, fake-quantized to their formats; the heads are not quantized."""
    formats = replace(formats, heads="native")
    source = model.state_dict().__getitem__
    return fuse(model.config, source, packed_linear, formats=formats, dtype=dtype, device=device)


def _qk_norm(config: MossLMConfig, layer: FusedLayer[Linear]) -> Tensor | None:
    """Norm weights of queries and of keys [heads + kv_heads, head_dim], one row for each head."""
    if layer.q_norm is None or layer.k_norm is None:
        return None
    queries = layer.q_norm.expand(config.num_attention_heads, -1)
    return torch.cat((queries, layer.k_norm.expand(config.num_key_value_heads, -1)))
