"""The op list of the persistent decode kernel: matrices and attentions, in order.

In: network, int4 scales in the kernel's order, the flagged buffers through which ops exchange results,
outputs. Out: the structs `Op` (persistent_layout.py) as int64 [ops + 1, 8], terminated by an empty op. Built
once for each choice of tails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine_runtime.executors.cuda.decode_backend import DecodeOutputs
from engine_runtime.executors.cuda.persistent_layout import K_TILE_BYTES, TILE_ROWS, Op, OpKind
from engine_runtime.executors.cuda.weights import LayerWeights, Network
from engine_runtime.lm.kv_cache import KVCache
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.quantization import GROUP, Matrix


@dataclass(frozen=True, slots=True)
class ExchangeBuffers:
    """Flagged exchange buffers, four bytes per number: x and y pass from layer to layer, in the trunk and in
    a tail."""

    x: Tensor
    x_attended: Tensor
    y: Tensor
    y_attended: Tensor
    qkv: Tensor
    attended: Tensor
    gated: Tensor

    @classmethod
    def of(cls, config: MossLMConfig, device: torch.device) -> ExchangeBuffers:
        """Empty buffers, with flags that no launch uses."""
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        widths = [config.hidden_size] * 4
        widths += [(heads + 2 * kv_heads) * dim, heads * dim, config.intermediate_size]
        return cls(*(torch.zeros(width, device=device) for width in widths))


def tiled_scales(network: Network) -> dict[int, Tensor]:
    """The scales of int4 matrices in the order in which the kernel copies them, by address of the weight."""
    gated = {layer.gate_up.weight.data_ptr() for layer in network.layers}
    return {
        matrix.weight.data_ptr(): tile_major(matrix.scale, is_gated=matrix.weight.data_ptr() in gated)
        for matrix in network.matrices
        if matrix.format == "int4" and matrix.scale is not None
    }


def tile_major(scale: Tensor, *, is_gated: bool) -> Tensor:
    """Scales [rows, groups] -> [tiles, K tiles, TILE_ROWS, groups of a K tile]: contiguous per copy, since
    every copy has the same fixed cost. A tile of a gated matrix is eight rows of gates and the eight matching
    rows."""
    rows, groups = scale.shape
    order = torch.arange(rows, device=scale.device)
    if is_gated:
        order = order.view(2, -1, TILE_ROWS // 2).transpose(0, 1)
    per_k_tile = K_TILE_BYTES * 2 // GROUP
    tiles = scale[order.reshape(-1)].view(-1, TILE_ROWS, groups // per_k_tile, per_k_tile)
    return tiles.transpose(1, 2).contiguous()


def op_list(
    network: Network,
    scales: Mapping[int, Tensor],
    buffers: ExchangeBuffers,
    outputs: DecodeOutputs,
    cache: KVCache,
    *,
    text: bool,
    audio: bool,
) -> Tensor:
    """The op list of a step with these tails (host memory)."""
    ops = _OpList(scales, buffers, cache)
    x = network.embedding
    for index, layer in enumerate(network.trunk):
        keeps = index == len(network.trunk) - 1 and not (text and audio)
        ops.layer(layer, x, buffers.x_attended, buffers.x, is_table=index == 0, keeps=keeps)
        x = buffers.x
    for tail, runs, logits in (
        (network.text, text, outputs.text_logits),
        (network.audio, audio, outputs.audio_logits),
    ):
        if runs:
            x = buffers.x
            for layer in tail.layers:
                ops.layer(layer, x, buffers.y_attended, buffers.y)
                x = buffers.y
            ops.linear(tail.head, x, logits, OpKind.RMS_NORM | OpKind.FLOAT32_OUT, norm=tail.norm)
    return ops.tensor()


class _OpList:
    """An op list under construction; tracks which op wrote a buffer last."""

    def __init__(self, scales: Mapping[int, Tensor], buffers: ExchangeBuffers, cache: KVCache) -> None:
        self._ops: list[Op] = []
        self._scales, self._buffers, self._cache = scales, buffers, cache
        self._writers: dict[int, int] = {}

    def layer(
        self,
        layer: LayerWeights,
        x: Tensor,
        x_attended: Tensor,
        out: Tensor,
        *,
        is_table: bool = False,
        keeps: bool = False,
    ) -> None:
        """x -> out, via `x_attended`, which is x plus the attention output."""
        buffers, table = self._buffers, OpKind.FROM_EMBEDDING if is_table else OpKind(0)
        self.linear(layer.qkv, x, buffers.qkv, OpKind.RMS_NORM | table, norm=layer.input_norm)
        self._attention(layer, buffers.qkv, buffers.attended)
        self.linear(layer.o, buffers.attended, x_attended, OpKind.ADD_RESIDUAL | table, residual=x)
        gated = OpKind.RMS_NORM | OpKind.SILU_GATE
        self.linear(layer.gate_up, x_attended, buffers.gated, gated, norm=layer.post_norm)
        last = OpKind.ADD_RESIDUAL | (OpKind.KEEP_TRUNK if keeps else OpKind(0))
        self.linear(layer.down, buffers.gated, out, last, residual=x_attended)

    def linear(
        self,
        matrix: Matrix,
        x: Tensor,
        out: Tensor,
        kind: OpKind,
        *,
        norm: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> None:
        """Append a matrix product with its prologue and epilogue."""
        rows, columns = matrix.shape
        self._add(
            x,
            out,
            weight=_address(matrix.weight),
            scale=_address(self._scales.get(matrix.weight.data_ptr(), matrix.scale)),
            norm=_address(norm),
            residual=_address(residual),
            kind=kind if matrix.format == "native" else kind | OpKind.QUANTIZED,
            tiles=rows // TILE_ROWS,
            columns=columns,
            extra=rows // 2 if kind & OpKind.SILU_GATE else 0,
        )

    def _attention(self, layer: LayerWeights, qkv: Tensor, out: Tensor) -> None:
        norms = {"scale": _address(layer.q_norm), "norm": _address(layer.k_norm)}
        offset = self._cache.layer_offset(layer.index)
        self._add(qkv, out, kind=OpKind.ATTENTION, extra=offset, **norms)

    def tensor(self) -> Tensor:
        """The ops, then the terminating empty one, as int64 [ops + 1, 8]."""
        records = (Op * (len(self._ops) + 1))(*self._ops)
        return torch.frombuffer(bytearray(records), dtype=torch.int64).view(len(records), -1)

    def _add(self, x: Tensor, out: Tensor, **fields: int) -> None:
        source = self._writers.get(x.data_ptr(), 0)
        self._writers[out.data_ptr()] = len(self._ops)
        self._ops.append(Op(x=_address(x), out=_address(out), source=source, **fields))


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
