"""The weights of the language model as the CUDA path reads them: fused, in their formats, on the device.

In: a source of tensors by their state-dict names. Out: `Network`. Called once, on the thread that will use
the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine_runtime.executors.fused_weights import (
    FusedLayer,
    FusedNetwork,
    FusedTail,
    WeightSource,
    concatenated,
    fuse,
    signed_rotary_tables,
)
from engine_runtime.models.moss_lm import MossLMConfig
from engine_runtime.options import BlockFormats, WeightFormat
from engine_runtime.quantization import Matrix, quantize

LayerWeights = FusedLayer[Matrix]
Tail = FusedTail[Matrix]


@dataclass(frozen=True, slots=True)
class Network(FusedNetwork[Matrix]):
    """All weights. `cos` and `sin`: see `signed_rotary_tables`."""

    cos: Tensor
    sin: Tensor

    @property
    def layers(self) -> list[LayerWeights]:
        """Layers of the trunk and of both tails."""
        return [*self.trunk, *self.text.layers, *self.audio.layers]

    @property
    def matrices(self) -> list[Matrix]:
        """Matrices of all layers, and the heads."""
        return [*(m for layer in self.layers for m in layer.matrices), self.text.head, self.audio.head]

    def step_bytes(self, *, text: bool, audio: bool) -> int:
        """Bytes of weights that one decode step reads."""
        tails = [tail for tail, runs in ((self.text, text), (self.audio, audio)) if runs]
        layers = [*self.trunk, *(layer for tail in tails for layer in tail.layers)]
        matrices = [matrix for layer in layers for matrix in layer.matrices]
        return sum(matrix.bytes for matrix in [*matrices, *(tail.head for tail in tails)])

    def largest_dense(self, *, multiplies_fp8: bool) -> int:
        """Number of weights of the largest matrix that must be dequantized for a product; fp8 matrices do not
        count if they are multiplied directly."""
        kept = {"native", "fp8"} if multiplies_fp8 else {"native"}
        return max((m.shape[0] * m.shape[1] for m in self.matrices if m.format not in kept), default=0)


def build_network(
    config: MossLMConfig,
    source: WeightSource,
    *,
    formats: BlockFormats,
    dtype: torch.dtype,
    device: torch.device,
    max_seq_len: int,
) -> Network:
    """Read every weight from `source`. `dtype` is that of native weights, norms and tables."""

    def pack(parts: Sequence[Tensor], weight_format: WeightFormat) -> Matrix:
        return quantize(concatenated(parts, dtype, device), weight_format)

    fused = fuse(config, source, pack, formats=formats, dtype=dtype, device=device)
    with torch.inference_mode():
        cos, sin = signed_rotary_tables(config, max_seq_len, dtype, device)
        return Network(config, fused.embedding, fused.trunk, fused.text, fused.audio, cos, sin)
