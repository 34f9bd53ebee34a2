"""Prefill: runs many rows at once through cuBLAS products and library attention, over the paged pool.

In: merged ids, or kept trunk outputs, of rows of one sequence, whose block table is in StepInputs. Out: K/V
of these rows in the pool, and logits of the last one. The operations between the matrix products are an
interface, `RowOperations`, with a torch and a Triton implementation. A few rows take longer to launch than to
compute; padded to a fixed size (`graphed_span`) they can be captured in a CUDA graph. Engine thread.

A quantized weight is dequantized to a scratch buffer right before its product, unless the batch is small
enough for a kernel that reads the stored format; fp8 weights are multiplied directly if the GPU supports it
(`has_fp8_matmul`) and the batch is large enough, with the rows quantized to fp8 with one scale per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from engine_runtime.executors.cuda.inputs import StepInputs
from engine_runtime.executors.cuda.torch_backend import (
    apply_rope,
    first_blocks,
    head_norm,
    read_rows,
    write_rows,
)
from engine_runtime.executors.cuda.weights import LayerWeights, Network, Tail
from engine_runtime.hardware import kernel_capability
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.quantization import FP8, FP8_MAX, Matrix, to_fp8

_FP8_ROWS = 17
"""Minimum number of rows for which the library's fp8 product is faster than the small-batch kernel."""
GRAPHED_ROWS = (16, 64)
"""Sizes of a captured prefill: a few rows of speech, or the end of a question and the opening of the
reply."""


class RowOperations(Protocol):
    """The operations of a layer on n rows other than matrix products and long attention."""

    def norm(self, x: Tensor, norm: Tensor) -> Tensor:
        """x [n, H] -> rms_norm(x) * norm."""

    def apply_rope_and_write_kv(self, qkv: Tensor, layer: LayerWeights, positions: Tensor) -> Tensor:
        """Normalize q and k (if the layer has their norms) of the rows at `positions` [n] int64, apply RoPE,
        write k and v to the pool.

        qkv [n, (heads + 2 kv_heads) * head_dim] -> q [n, heads, head_dim]. With kernels, a position below 0
        marks a padding row, which is not written.
        """

    def attend(self, q: Tensor, layer: LayerWeights, positions: Tensor, bucket: int) -> Tensor:
        """Attention of rows whose K and V are in the pool; only the sizes are fixed, not the positions.

        q [n, heads, head_dim] of the rows at `positions` [n] int64, all below `bucket`, with a causal mask ->
        [n, heads * head_dim]. A position below 0 marks a padding row.
        """

    def gate(self, gate_up: Tensor) -> Tensor:
        """[n, 2 I] -> silu(gate) * up [n, I]."""

    def to_fp8(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [n, K] -> e4m3 [n, K] and the scale of each row [n, 1] float32."""

    def small_batch_linear(self, x: Tensor, matrix: Matrix, residual: Tensor | None) -> Tensor | None:
        """x [n, in] @ weight^T (+ residual [n, out]) by a quantized weight in its stored format; None where
        that is slower than dequantizing."""

    def dense(self, matrix: Matrix, dtype: torch.dtype, scratch: Tensor) -> Tensor:
        """The weight [out, in] in `dtype`: the weight itself if it is native, otherwise a copy in the flat
        buffer."""


class TorchRowOperations:
    """Plain torch on any device."""

    def __init__(self, network: Network, cache: KVCache, inputs: StepInputs) -> None:
        self._network, self._cache, self._inputs = network, cache, inputs
        self._blocks = cache.blocks

    def norm(self, x: Tensor, norm: Tensor) -> Tensor:
        return F.rms_norm(x, norm.shape, norm, self._network.config.rms_norm_eps)

    def apply_rope_and_write_kv(self, qkv: Tensor, layer: LayerWeights, positions: Tensor) -> Tensor:
        config, num_rows, size = self._network.config, qkv.shape[0], self._cache.tokens_per_block
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        q, k, v = qkv.view(num_rows, -1, dim).split((heads, kv_heads, kv_heads), dim=1)
        cos, sin = (
            table.index_select(0, positions)[:, None] for table in (self._network.cos, self._network.sin)
        )
        q, k = (
            apply_rope(head_norm(part, norm, config.rms_norm_eps), cos, sin)
            for part, norm in ((q, layer.q_norm), (k, layer.k_norm))
        )
        block = self._inputs.table[positions // size].long() + self._cache.layer_offset(layer.index)
        write_rows(self._blocks, block, positions % size, k, v)
        return q

    def attend(self, q: Tensor, layer: LayerWeights, positions: Tensor, bucket: int) -> Tensor:
        blocks = first_blocks(self._inputs.table, bucket, self._cache.tokens_per_block)
        offset = self._cache.layer_offset(layer.index)
        keys, values = read_rows(self._blocks, blocks + offset, bucket, q.dtype)
        mask = torch.arange(bucket, device=q.device) <= positions.clamp_min(0)[:, None]
        heads: Tensor = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None], keys, values, attn_mask=mask, enable_gqa=True
        )
        return heads[0].transpose(0, 1).reshape(q.shape[0], -1)

    def gate(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def to_fp8(self, x: Tensor) -> tuple[Tensor, Tensor]:
        wide = x.float()
        scale = (wide.abs().amax(dim=-1, keepdim=True) / FP8_MAX).clamp_min(1e-12)
        return to_fp8(wide / scale), scale

    def small_batch_linear(self, x: Tensor, matrix: Matrix, residual: Tensor | None) -> Tensor | None:
        return None

    def dense(self, matrix: Matrix, dtype: torch.dtype, scratch: Tensor) -> Tensor:
        return matrix.dense(dtype, scratch)


@dataclass(frozen=True, slots=True)
class RowSpan:
    """The rows of one call, and the rows that they attend to.

    Attributes:
        positions: [n] int64 in the sequence; -1 for a padding row of a captured size.
        num_seen: upper bound of the rows, from the beginning of the sequence, that are attended to.
        blocks: K block offsets of these rows for layer 0; row i of the n sees all but the last n - 1 - i.
            None if the positions are known on the device only.
        last: [1] int64, the row whose logits are requested.
    """

    positions: Tensor
    num_seen: int
    blocks: Tensor | None
    last: Tensor


@dataclass(frozen=True, slots=True)
class RowsShape:
    """Key of a captured prefill of at most `size` rows.

    `is_full_chunk`: exactly the rows up to `bucket`, as the chunks of a long prompt. The causal structure is
    fixed then, so that attention needs no mask and skips everything above the diagonal.
    """

    size: int
    bucket: int
    text: bool
    audio: bool
    is_full_chunk: bool = False


class Prefill:
    """`scratch` is the flat buffer for a dequantized copy of a matrix."""

    def __init__(
        self,
        network: Network,
        cache: KVCache,
        inputs: StepInputs,
        operations: RowOperations,
        scratch: Tensor,
        *,
        has_fp8_matmul: bool,
    ) -> None:
        self._network, self._cache, self._inputs = network, cache, inputs
        self._operations, self._scratch, self._has_fp8_matmul = operations, scratch, has_fp8_matmul
        self._blocks = cache.blocks
        self._trunk = cache.trunk.view(-1, network.config.hidden_size)

    def span(self, first: int, num_rows: int) -> RowSpan:
        """Rows [first, first + num_rows) of the sequence whose block table is in StepInputs."""
        device, total = self._blocks.device, first + num_rows
        positions = torch.arange(first, total, device=device)
        last = torch.full((1,), num_rows - 1, device=device)
        blocks = first_blocks(self._inputs.table, total, self._cache.tokens_per_block)
        return RowSpan(positions, total, blocks, last)

    def graphed_span(self, where: Tensor, size: int, bucket: int) -> RowSpan:
        """`size` rows from where[0] on, of which where[1] are valid, among at most `bucket` rows. `where` [2]
        int64 is on the device: a capture fixes only size and bucket.
        """
        rows = torch.arange(size, device=self._blocks.device)
        positions = torch.where(rows < where[1], where[0] + rows, -1)
        return RowSpan(positions, bucket, None, where[1:2] - 1)

    def trunk(self, ids: Tensor, span: RowSpan, *, keep: bool) -> Tensor:
        """Merged ids [n] int64 (device) -> trunk output [n, H]; `keep` also stores it beside the pool."""
        x = F.embedding(ids, self._network.embedding)
        for layer in self._network.trunk:
            x = self._layer(layer, x, span)
        if keep:
            # Padding rows repeat the last valid row.
            rows = torch.minimum(torch.arange(x.shape[0], device=x.device), span.last)
            self._trunk[self._kept_rows(span.positions[rows])] = x[rows]
        return x

    def kept(self, span: RowSpan) -> Tensor:
        """Kept trunk outputs of the span's rows."""
        return self._trunk[self._kept_rows(span.positions)]

    def tail(self, tail: Tail, x: Tensor, span: RowSpan, *, wants_logits: bool) -> Tensor | None:
        """Trunk output [n, H] of the span's rows -> logits of the last row [1, vocab] float32.

        The last layer computes only what is needed: K/V of all rows, and the output of the last one.
        """
        *inner, last = tail.layers
        for layer in inner:
            x = self._layer(layer, x, span)
        x = self._layer(last, x, span, all_out=False, last_out=wants_logits)
        if not wants_logits:
            return None
        return self._product(self._operations.norm(x, tail.norm), tail.head).float()

    def _kept_rows(self, positions: Tensor) -> Tensor:
        size, stride = self._cache.tokens_per_block, self._cache.block_stride
        return self._inputs.table[positions // size].long() // stride * size + positions % size

    def _layer(
        self, layer: LayerWeights, x: Tensor, span: RowSpan, *, all_out: bool = True, last_out: bool = True
    ) -> Tensor:
        operations, positions = self._operations, span.positions
        qkv = self._product(operations.norm(x, layer.input_norm), layer.qkv)
        q = operations.apply_rope_and_write_kv(qkv, layer, span.positions)
        if not all_out:
            if not last_out:
                return x[:0]
            q, x, positions = (value.index_select(0, span.last) for value in (q, x, positions))
        # Not in place: both tails start from the same x.
        x = self._product(self._attend(q, layer, positions, span), layer.o, x)
        gated = operations.gate(self._product(operations.norm(x, layer.post_norm), layer.gate_up))
        return self._product(gated, layer.down, x, in_place=True)

    def _attend(self, q: Tensor, layer: LayerWeights, positions: Tensor, span: RowSpan) -> Tensor:
        """q [n, heads, head_dim] of the rows at `positions`, the last n of the span if that is fixed -> [n,
        heads * head_dim]."""
        if span.blocks is None:
            return self._operations.attend(q, layer, positions, span.num_seen)
        num_rows, _, dim = q.shape
        blocks = span.blocks + self._cache.layer_offset(layer.index)
        keys, values = read_rows(self._blocks, blocks, span.num_seen, q.dtype)
        if num_rows > 1:
            queries = q.transpose(0, 1)[None]
            heads: Tensor = F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=causal_lower_right(num_rows, span.num_seen), enable_gqa=True
            )
            return heads[0].transpose(0, 1).reshape(num_rows, -1)
        # The query heads of one K/V head become query rows, because they attend to the same keys.
        grouped = q.view(1, keys.shape[1], -1, dim)
        return F.scaled_dot_product_attention(grouped, keys, values).reshape(1, -1)

    def _product(
        self, x: Tensor, matrix: Matrix, residual: Tensor | None = None, *, in_place: bool = False
    ) -> Tensor:
        """x @ weight^T (+ residual, which may be overwritten if `in_place`)."""
        multiplies_fp8 = self._multiplies_fp8(matrix)
        if not multiplies_fp8 or x.shape[0] < _FP8_ROWS:
            found = self._operations.small_batch_linear(x, matrix, residual)
            if found is not None:
                return found
        if multiplies_fp8:
            product = self._fp8_product(x, matrix)
            return product if residual is None else residual + product
        dense = self._operations.dense(matrix, x.dtype, self._scratch)
        if residual is None:
            return F.linear(x, dense)
        return residual.addmm_(x, dense.t()) if in_place else torch.addmm(residual, x, dense.t())

    def _multiplies_fp8(self, matrix: Matrix) -> bool:
        return self._has_fp8_matmul and matrix.weight.dtype == FP8

    def _fp8_product(self, x: Tensor, matrix: Matrix) -> Tensor:
        assert matrix.scale is not None, matrix.format
        rows, scale = self._operations.to_fp8(x)
        return torch._scaled_mm(
            rows, matrix.weight.t(), scale_a=scale, scale_b=matrix.scale[None], out_dtype=x.dtype
        )


def has_fp8_matmul(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this GPU and torch build support an e4m3 product with a scale per row, determined by a
    trial."""
    if dtype != torch.bfloat16 or kernel_capability(device) < (8, 9):
        return False
    weight, scale = torch.ones((16, 32), device=device).to(FP8), torch.ones(16, device=device)
    try:
        products = [
            torch._scaled_mm(
                weight[:rows],
                weight.t(),
                scale_a=scale[:rows, None],
                scale_b=scale[None],
                out_dtype=dtype,
            )
            for rows in (1, 3, 16)
        ]
    except RuntimeError:
        return False
    return all(bool((product == 32).all()) for product in products)
