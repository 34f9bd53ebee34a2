"""Single-row steps of the torch executor in float32 on a CPU: a decode step, or a prefill of one row.

In: one row of one sequence and the KV pool. Out: its logits. A small model spends more time between its
products than in them: the weights that stream through the caches evict the code of all other operations. So
torch computes the products only, and NumPy, whose operations on small arrays cost a fraction of torch's, the
rest in place. Norm weights are part of the matrices (`fold_norms`), and the norm of a row is the factor of a
product. TorchExecutor runs all other steps and is the reference. Engine thread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine_runtime.executors.fused_weights import FusedLayer, FusedNetwork, FusedTail
from engine_runtime.executors.torch.linear import DenseLinear
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.lm.step import ScheduledBatch, ScheduledSequence, StepOutput

Array = NDArray[np.float32]


def fold_norms(network: FusedNetwork[DenseLinear]) -> None:
    """Multiply the matrices by the norm weights in front of them, in place; these become 1."""
    for layer in (*network.trunk, *network.text.layers, *network.audio.layers):
        _fold(layer.input_norm, layer.qkv)
        _fold(layer.post_norm, layer.gate_up)
    for tail in (network.text, network.audio):
        _fold(tail.norm, tail.head)


def _fold(norm: Tensor, linear: DenseLinear) -> None:
    linear.weight.mul_(norm[:, None])
    norm.fill_(1.0)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row [1, n] for torch, and the same memory [n] for NumPy."""

    tensor: Tensor
    array: Array

    @classmethod
    def empty(cls, width: int) -> _Row:
        tensor = torch.empty((1, width))
        return cls(tensor, tensor.numpy()[0])


class SingleRow:
    """Runs steps in buffers of its own; a step leaves nothing in them.

    Args:
        network: weights in float32 on the CPU, with folded norms.
        cache: the pool, in float32.
        qk_norms: norm weights of queries and keys by layer; None in a network without them. [layers, heads +
            kv_heads, head_dim]
        cos, sin: RoPE tables; sin has the sign of the half rotation in it. [rows, 1, head_dim]
    """

    def __init__(
        self,
        network: FusedNetwork[DenseLinear],
        cache: KVCache,
        qk_norms: Tensor | None,
        cos: Tensor,
        sin: Tensor,
    ) -> None:
        config = network.config
        self._network, self._eps = network, config.rms_norm_eps
        self._embedding, self._trunk = network.embedding.numpy(), cache.trunk.numpy()
        self._attention = _Attention(network, cache, qk_norms, cos, sin)
        self._x, self._of_tail = _Row.empty(config.hidden_size), _Row.empty(config.hidden_size)
        width = config.intermediate_size
        self._gate_up, self._inner = _Row.empty(2 * width), _Row.empty(width)
        self._unread = torch.zeros((1, 1))

    @staticmethod
    def accepts(batch: ScheduledBatch) -> bool:
        """Whether the step is of one row, and no tail that runs has earlier rows to fill."""
        scheduled = batch.sequences[0]
        if len(batch.sequences) > 1 or len(scheduled.token_ids) > 1:
            return False
        first, tails = scheduled.first_position, scheduled.tails
        return (scheduled.text_computed == first or not tails.text) and (
            scheduled.audio_computed == first or not tails.audio
        )

    # the consumer of the logits checks them; the exponential of a SiLU may overflow, as it should
    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def run(self, scheduled: ScheduledSequence) -> StepOutput:
        """Logits, not validated."""
        tails, network, x = scheduled.tails, self._network, self._x
        block, slot = self._attention.start(scheduled)
        x.array[:] = self._embedding[scheduled.token_ids[0]]
        for layer in network.trunk:
            self._layer(layer, x)
        if not (tails.text and tails.audio):
            self._trunk[block, slot] = x.array
        return StepOutput(
            self._logits(network.text) if tails.text else None,
            self._logits(network.audio) if tails.audio else None,
        )

    def _logits(self, tail: FusedTail[DenseLinear]) -> Tensor:
        x = self._of_tail
        x.array[:] = self._x.array
        for layer in tail.layers:
            self._layer(layer, x)
        return self._normed_product(x, tail.head)[0]

    def _layer(self, layer: FusedLayer[DenseLinear], x: _Row) -> None:
        """Replaces x by the layer's output."""
        attention, gate_up, inner = self._attention, self._gate_up, self._inner
        self._normed_product(x, layer.qkv, attention.qkv)
        attention.attend(layer.index)
        torch.addmm(x.tensor, attention.attended.tensor, layer.o.weight, out=x.tensor)
        self._normed_product(x, layer.gate_up, gate_up)
        gate, up = gate_up.array[: len(inner.array)], gate_up.array[len(inner.array) :]
        silu = inner.array
        np.negative(gate, out=silu)
        np.exp(silu, out=silu)
        silu += 1.0
        np.divide(gate, silu, out=silu)
        silu *= up
        torch.addmm(x.tensor, inner.tensor, layer.down.weight, out=x.tensor)

    def _normed_product(self, x: _Row, linear: DenseLinear, out: _Row | None = None) -> Tensor:
        """RMS norm of x, times the matrix."""
        mean = float(np.dot(x.array, x.array)) / len(x.array)
        factor = 1.0 / math.sqrt(mean + self._eps)
        target = None if out is None else out.tensor
        return torch.addmm(self._unread, x.tensor, linear.weight, beta=0.0, alpha=factor, out=target)


class _Attention:
    """Attention of a row: `qkv` in, `attended` out; writes the row's K/V to the pool."""

    def __init__(
        self,
        network: FusedNetwork[DenseLinear],
        cache: KVCache,
        qk_norms: Tensor | None,
        cos: Tensor,
        sin: Tensor,
    ) -> None:
        config = network.config
        heads, num_kv, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.qkv = _Row.empty((heads + 2 * num_kv) * dim)
        self.attended = _Row.empty(heads * dim)
        self._dim, self._eps = dim, np.float32(config.rms_norm_eps)
        every = self.qkv.array.reshape(-1, dim)
        self._qk, self._kv = every[:-num_kv], every[heads:].reshape(2, num_kv, dim)
        # the query heads of one K/V head become query rows: all attend to the same keys, without a mask
        self._query = every[:heads].reshape(num_kv, -1, dim)
        self._result = self.attended.array.reshape(self._query.shape)
        self._swapped = self._qk.reshape(-1, 2, dim // 2)[:, ::-1]
        self._turned, self._squares = np.empty_like(self._qk), np.empty_like(self._qk)
        # the norm weights are part of the tables of the rotation; the scale is one of the queries
        self._is_normed = qk_norms is not None
        norms = torch.ones((cache.num_layers, heads + num_kv, dim)) if qk_norms is None else qk_norms.clone()
        norms[:, :heads] *= dim**-0.5
        self._norms, self._swapped_norms = norms.numpy(), norms.roll(dim // 2, -1).numpy()
        self._cos, self._sin = cos.numpy(), sin.numpy()
        self._pool = cache.pool.numpy()
        self._heads = cache.blocks.view(-1, cache.tokens_per_block, dim).numpy()
        self._heads_per_block = cache.block_stride * num_kv
        layers = np.array([cache.layer_offset(layer) for layer in range(cache.num_layers)])
        self._head_index = layers[:, None, None, None] * num_kv + np.arange(2 * num_kv).reshape(2, num_kv, 1)

    def start(self, scheduled: ScheduledSequence) -> tuple[int, int]:
        """Prepare a step; returns the block and the slot of the row."""
        row = scheduled.first_position
        size = self._heads.shape[1]
        block, slot = scheduled.block_table[row // size], row % size
        self._rows, self._places = row + 1, self._pool[block, :, :, :, slot]
        used = np.array(scheduled.block_table[: row // size + 1])
        self._read = used * self._heads_per_block + self._head_index
        self._by_cos = self._norms * self._cos[row]
        self._by_sin = (self._swapped_norms * self._sin[row]).reshape(len(self._norms), *self._swapped.shape)
        return block, slot

    def attend(self, layer: int) -> None:
        """From `qkv` to `attended`."""
        self._rotate(layer)
        self._places[layer] = self._kv
        kv: Any = self._heads.take(self._read[layer], axis=0)  # [2, kv_heads, blocks, tokens, head_dim]
        keys, values = kv.reshape(*kv.shape[:2], -1, self._dim)[:, :, : self._rows]
        weights = np.matmul(self._query, keys.transpose(0, 2, 1))
        weights -= weights.max(axis=-1, keepdims=True)
        np.exp(weights, out=weights)
        np.matmul(weights, values, out=self._result)
        np.divide(self._result, weights.sum(axis=-1, keepdims=True), out=self._result)

    def _rotate(self, layer: int) -> None:
        """RMS norm and RoPE of queries and keys, in place."""
        qk, turned = self._qk, self._turned
        norm = self._rms() if self._is_normed else None
        np.multiply(self._swapped, self._by_sin[layer], out=turned.reshape(self._swapped.shape))
        np.multiply(qk, self._by_cos[layer], out=qk)
        np.add(qk, turned, out=qk)
        if norm is not None:
            np.divide(qk, norm, out=qk)

    def _rms(self) -> Array:
        """Root mean square of each query and key. [heads + kv_heads, 1]"""
        np.multiply(self._qk, self._qk, out=self._squares)
        rms: Array = np.add.reduce(self._squares, axis=1, keepdims=True)
        rms /= np.float32(self._dim)
        rms += self._eps
        return np.sqrt(rms, out=rms)
