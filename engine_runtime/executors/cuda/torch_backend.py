"""The decode backend in plain torch: the reference implementation of the others, and the fallback without
them.

In and out: as in executors/cuda/decode_backend.py; runs on any device. Engine thread.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine_runtime.executors.cuda.decode_backend import DecodeOutputs
from engine_runtime.executors.cuda.inputs import StepInputs
from engine_runtime.executors.cuda.layerwise_backend import LayerwiseBackend
from engine_runtime.executors.cuda.sampler import DeviceSampler
from engine_runtime.executors.cuda.weights import LayerWeights, Network
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.quantization import FP8, Matrix, to_fp8


class TorchBackend(LayerwiseBackend):
    """`scratch` is the flat buffer for a dequantized copy of a matrix."""

    name = "torch"

    def __init__(
        self, network: Network, cache: KVCache, inputs: StepInputs, outputs: DecodeOutputs, scratch: Tensor
    ) -> None:
        config, device = network.config, cache.pool.device
        sampler = DeviceSampler(config.text_vocab, config.audio_vocab, inputs, device)
        super().__init__(network, inputs, outputs, sampler)
        self._cache, self._scratch = cache, scratch
        self._blocks = cache.blocks

    def norm_linear(self, x: Tensor, norm: Tensor, matrix: Matrix, out: Tensor) -> None:
        out.copy_(F.linear(self._norm(x, norm), self._dense(matrix)))

    def norm_gate_up(self, x: Tensor, norm: Tensor, matrix: Matrix, out: Tensor) -> None:
        gate, up = F.linear(self._norm(x, norm), self._dense(matrix)).chunk(2, dim=-1)
        torch.mul(F.silu(gate), up, out=out)

    def linear_add(self, x: Tensor, matrix: Matrix, residual: Tensor, out: Tensor) -> None:
        out.copy_(residual + F.linear(x, self._dense(matrix)))

    def attend(self, qkv: Tensor, layer: LayerWeights, bucket: int, out: Tensor) -> None:
        config, position = self._network.config, self._inputs.position
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        q, k, v = qkv.view(-1, dim).split((heads, kv_heads, kv_heads))
        cos, sin = (table.index_select(0, position) for table in (self._network.cos, self._network.sin))
        q, k = (
            apply_rope(head_norm(part, norm, config.rms_norm_eps), cos, sin)
            for part, norm in ((q, layer.q_norm), (k, layer.k_norm))
        )
        size, offset = self._cache.tokens_per_block, self._cache.layer_offset(layer.index)
        block = self._inputs.table.index_select(0, position // size).long() + offset
        write_rows(self._blocks, block, position % size, k[None], v[None])
        blocks = first_blocks(self._inputs.table, bucket, size) + offset
        keys, values = read_rows(self._blocks, blocks, bucket, qkv.dtype)
        mask = torch.arange(bucket, device=qkv.device) <= position
        grouped = q.reshape(1, kv_heads, heads // kv_heads, dim)
        attended = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask[None])
        out.copy_(attended.reshape(1, -1))

    def _norm(self, x: Tensor, norm: Tensor) -> Tensor:
        return F.rms_norm(x, norm.shape, norm, self._network.config.rms_norm_eps)

    def _dense(self, matrix: Matrix) -> Tensor:
        return matrix.dense(self._cache.trunk.dtype, self._scratch)


def head_norm(x: Tensor, norm: Tensor | None, eps: float) -> Tensor:
    """rms_norm(x) * norm over the head_dim, the last axis; x itself in a network without these norms."""
    return x if norm is None else F.rms_norm(x, norm.shape, norm, eps)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE by half rotation; the sign of the rotation is in `sin`. The head_dim is the last axis."""
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


def write_rows(blocks: Tensor, block: Tensor, slot: Tensor, k: Tensor, v: Tensor) -> None:
    """Write k and v [n, kv_heads, head_dim] to the pool: K block `block` [n] of their layer, position `slot`
    [n] in it; V is in the next block. `blocks` is the pool as [K or V blocks, kv_heads, tokens, head_dim]."""
    for rows, index in ((k, block), (v, block + 1)):
        if blocks.dtype == FP8:
            # As bytes, because not every build of torch supports indexed writes of 8-bit floats.
            blocks.view(torch.uint8)[index, :, slot] = to_fp8(rows).view(torch.uint8)
        else:
            blocks[index, :, slot] = rows


def first_blocks(table: Tensor, num_rows: int, tokens_per_block: int) -> Tensor:
    """K block offsets of a sequence's first rows, for layer 0, from StepInputs.table; int64."""
    return table[: -(-num_rows // tokens_per_block)].long()


def read_rows(blocks: Tensor, k_blocks: Tensor, num_rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """K and V [1, kv_heads, num_rows, head_dim] of one layer from its K blocks [count] (int64)."""
    _, kv_heads, _, dim = blocks.shape
    both = []
    stored = blocks.view(torch.uint8) if blocks.dtype == FP8 else blocks
    for index in (k_blocks, k_blocks + 1):
        found = stored.index_select(0, index).view(blocks.dtype).to(dtype)
        both.append(found.transpose(0, 1).reshape(1, kv_heads, -1, dim)[:, :, :num_rows])
    return both[0], both[1]
