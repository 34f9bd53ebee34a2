"""Steps of the speech encoder for several streams on tensor cores, with weights split into two bf16 parts.

In and out: as `step_slots` of encoder_pool.py, the reference implementation in float32, which it equals to
about 1e-5 of the hidden states: far below the distance between two code boundaries. On an H200 a code of 8
streams takes 1.4 ms instead of 5.2, of 32 streams 2.1 instead of 10.8. Five launches and four
matrix products per layer. The split weights are a copy: six bytes per parameter of the layers. Imported only
if Triton is available. Runs in the thread of its caller.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor, nn
from torch.nn import functional as F

from engine_runtime.cuda.kernels.pdl import pdl_launch_args
from engine_runtime.cuda.kernels.speech_encoder import add_norm_split, attend_slots, gelu_split
from engine_runtime.models.whisper_vq import CONV2_STRIDE, EncoderLayer, EncoderState, WhisperVQ

_GELU_TILE = 1024
_FEW_ROWS, _MANY_ROWS = 16, 32
"""New positions per attention program: of a few codes, and of many."""
_KEYS = 64


@dataclass(frozen=True, slots=True)
class _SplitLinear:
    """A weight as [out, 3 in]: its high part twice, then its low part; its bias [out]."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, *linears: nn.Linear) -> _SplitLinear:
        """Splits one layer, or several with the same input, stacked one after the other."""
        weight = torch.cat([linear.weight for linear in linears]).float()
        high = weight.bfloat16()
        low = (weight - high.float()).bfloat16()
        biases: list[Tensor] = [
            weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias
            for linear in linears
        ]
        return cls(torch.cat((high, high, low), dim=1), torch.cat(biases).float())

    def sums(self, parts: Tensor) -> Tensor:
        """float32 [rows, out], without the bias, of the parts of the input [rows, 3 in]."""
        if parts.device.type == "cpu":
            return parts.float() @ self.weight.float().T
        return torch.mm(parts, self.weight.T, out_dtype=torch.float32)


@dataclass(frozen=True, slots=True)
class _SplitLayer:
    qkv: _SplitLinear
    out: _SplitLinear
    inner: _SplitLinear
    outer: _SplitLinear
    attention_norm: nn.LayerNorm
    norm: nn.LayerNorm

    @classmethod
    def of(cls, layer: EncoderLayer) -> _SplitLayer:
        attention = layer.self_attn
        return cls(
            _SplitLinear.of(attention.q_proj, attention.k_proj, attention.v_proj),
            _SplitLinear.of(attention.out_proj),
            _SplitLinear.of(layer.fc1),
            _SplitLinear.of(layer.fc2),
            layer.self_attn_layer_norm,
            layer.final_layer_norm,
        )


class SplitEncoder:
    """Weights must not change afterwards."""

    @torch.inference_mode()
    def __init__(self, model: WhisperVQ) -> None:
        self._model = model
        self._layers = [
            _SplitLayer.of(layer) for layer in model.encoder.layers if isinstance(layer, EncoderLayer)
        ]
        self._pdl = pdl_launch_args(model.encoder.conv1.weight.device)

    def step(
        self, caches: EncoderState, mel: Tensor, conv1: Tensor, conv2: Tensor, numbers: Tensor, *, seen: int
    ) -> tuple[Tensor, Tensor]:
        """Shapes depend on mel only; `seen` is the capacity of the caches."""
        assert seen == caches.keys.shape[3]
        model, encoder = self._model, self._model.encoder
        streams, new = mel.shape[0], mel.shape[2] // CONV2_STRIDE
        first = F.gelu(encoder.conv1(mel, conv1))
        positions = numbers[:, 1:] + torch.arange(new, device=mel.device)
        x = F.gelu(encoder.conv2(first, conv2)).transpose(1, 2) + encoder.embed_positions(positions)
        x = x.reshape(streams * new, -1).contiguous()
        pending: tuple[Tensor, Tensor] | None = None
        for layer, keys, values in zip(self._layers, caches.keys, caches.values, strict=True):
            sums = layer.qkv.sums(self._normed(x, pending, layer.attention_norm))
            attended = self._attend(sums, layer.qkv.bias, keys, values, numbers, new)
            pending = layer.out.sums(attended), layer.out.bias
            sums = layer.inner.sums(self._normed(x, pending, layer.norm))
            pending = layer.outer.sums(self._gelu(sums, layer.inner.bias)), layer.outer.bias
        if pending is not None:
            x = x + pending[0] + pending[1]
        return model.quantize(model.pool(x.view(streams, new, -1))), first

    def _normed(self, x: Tensor, pending: tuple[Tensor, Tensor] | None, norm: nn.LayerNorm) -> Tensor:
        """The parts of norm(x), once the pending sums and their bias were added to x."""
        rows, width = x.shape
        out = x.new_empty((rows, 3 * width), dtype=torch.bfloat16)
        sums, bias = (x, x) if pending is None else pending
        add_norm_split[(rows,)](
            x, sums, bias, norm.weight, norm.bias, out, norm.eps, WIDTH=width,
            TILE=triton.next_power_of_2(width), HAS_SUMS=pending is not None, num_warps=4, **self._pdl,
        )  # fmt: skip
        return out

    def _gelu(self, sums: Tensor, bias: Tensor) -> Tensor:
        """The parts of gelu(sums + bias)."""
        rows, width = sums.shape
        out = sums.new_empty((rows, 3 * width), dtype=torch.bfloat16)
        tile = min(_GELU_TILE, triton.next_power_of_2(width))
        gelu_split[(rows, triton.cdiv(width, tile))](
            sums, bias, out, WIDTH=width, TILE=tile, num_warps=4, **self._pdl
        )
        return out

    def _attend(
        self, sums: Tensor, bias: Tensor, keys: Tensor, values: Tensor, numbers: Tensor, new: int
    ) -> Tensor:
        """The parts of the attended values; writes keys and values [slots, heads, positions, head_dim]."""
        _, heads, positions, dim = keys.shape
        streams = sums.shape[0] // new
        out = sums.new_empty((sums.shape[0], 3 * heads * dim), dtype=torch.bfloat16)
        rows = _FEW_ROWS if new <= 2 * _MANY_ROWS else _MANY_ROWS
        attend_slots[(heads, streams, triton.cdiv(new, rows))](
            sums, bias, keys, values, numbers, out, dim**-0.5, NEW=new, POSITIONS=positions, HEADS=heads,
            DIM=dim, DIM_TILE=max(16, triton.next_power_of_2(dim)), ROWS=rows, KEYS=_KEYS, num_warps=4,
            **self._pdl,
        )  # fmt: skip
        return out
