"""The op list of the persistent decode kernel: matrices and attentions, in order.

In: network, int4 scales in the kernel's order, the flagged buffers through which ops exchange results,
outputs. Out: int64 [ops + 1, 8], struct Phase of kernels/persistent_decode/base.cu, terminated by an empty
op. Built once for each choice of tails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine_runtime.executors.cuda.weights import LayerWeights, Network
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.quantization import GROUP, Matrix

ATTENDS, NORMED, GATED, ADDS, WIDE, ROUNDED, FROM_TABLE, KEEPS = (1 << bit for bit in range(8))
"""Op kinds; see base.cu."""
TILE_ROWS = 16
"""Output rows of a tile."""
PIECE = 1024
"""Bytes of each row per pipeline stage."""


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """Result buffers: logits [1, vocabulary] float32, and the kept outputs of the trunk [rows, H]."""

    text_logits: Tensor
    audio_logits: Tensor
    trunk: Tensor


@dataclass(frozen=True, slots=True)
class Messages:
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
    def of(cls, config: MossLMConfig, device: torch.device) -> Messages:
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
    """Scales [rows, groups] -> [tiles, pieces, TILE_ROWS, groups of a piece]: contiguous per copy, since
    every copy has the same fixed cost. A tile of a gated matrix is eight rows of gates and the eight matching
    rows."""
    rows, groups = scale.shape
    order = torch.arange(rows, device=scale.device)
    if is_gated:
        order = order.view(2, -1, TILE_ROWS // 2).transpose(0, 1)
    of_a_piece = PIECE * 2 // GROUP
    tiles = scale[order.reshape(-1)].view(-1, TILE_ROWS, groups // of_a_piece, of_a_piece)
    return tiles.transpose(1, 2).contiguous()


def listed_phases(
    network: Network,
    scales: Mapping[int, Tensor],
    messages: Messages,
    outputs: StepOutputs,
    *,
    text: bool,
    audio: bool,
) -> Tensor:
    """The op list of a step with these tails (host memory)."""
    phases = _Phases(scales, messages)
    x = network.embedding
    for index, layer in enumerate(network.trunk):
        keeps = index == len(network.trunk) - 1 and not (text and audio)
        phases.layer(layer, x, messages.x_attended, messages.x, is_table=index == 0, keeps=keeps)
        x = messages.x
    for tail, runs, logits in (
        (network.text, text, outputs.text_logits),
        (network.audio, audio, outputs.audio_logits),
    ):
        if runs:
            x = messages.x
            for layer in tail.layers:
                phases.layer(layer, x, messages.y_attended, messages.y)
                x = messages.y
            phases.linear(tail.head, x, logits, NORMED | WIDE, norm=tail.norm)
    return torch.tensor([*phases.rows, [0] * 8], dtype=torch.int64)


class _Phases:
    """An op list under construction; tracks which op wrote a buffer last."""

    def __init__(self, scales: Mapping[int, Tensor], messages: Messages) -> None:
        self.rows: list[list[int]] = []
        self._scales, self._messages = scales, messages
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
        messages, table = self._messages, FROM_TABLE if is_table else 0
        self.linear(layer.qkv, x, messages.qkv, NORMED | table, norm=layer.input_norm)
        self._attention(layer, messages.qkv, messages.attended)
        self.linear(layer.o, messages.attended, x_attended, ADDS | table, residual=x)
        self.linear(layer.gate_up, x_attended, messages.gated, NORMED | GATED, norm=layer.post_norm)
        last = ADDS | (KEEPS if keeps else 0)
        self.linear(layer.down, messages.gated, out, last, residual=x_attended)

    def linear(
        self,
        matrix: Matrix,
        x: Tensor,
        out: Tensor,
        kind: int,
        *,
        norm: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> None:
        """Append a matrix product with its prologue and epilogue."""
        rows, columns = matrix.shape
        kind |= 0 if matrix.format == "native" else ROUNDED
        half = rows // 2 if kind & GATED else 0
        scale = self._scales.get(matrix.weight.data_ptr(), matrix.scale)
        self._add([matrix.weight, scale, norm, x, residual, out], kind, rows // TILE_ROWS, columns, half)

    def _attention(self, layer: LayerWeights, qkv: Tensor, out: Tensor) -> None:
        self._add([None, layer.q_norm, layer.k_norm, qkv, None, out], ATTENDS, 0, 0, 2 * layer.index)

    def _add(self, pointers: list[Tensor | None], kind: int, tiles: int, columns: int, extra: int) -> None:
        addresses = [0 if tensor is None else tensor.data_ptr() for tensor in pointers]
        source = self._writers.get(addresses[3], 0)
        self._writers[addresses[5]] = len(self.rows)
        self.rows.append([*addresses, kind | source << 16 | tiles << 32, columns | extra << 32])
