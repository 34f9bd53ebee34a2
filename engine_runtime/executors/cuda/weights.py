"""The weights of the language model as the CUDA path reads them: fused, in their formats, on the device.

In: a source of tensors by their state-dict names. Out: `Network`. Each tensor is read once and moved, fused
and quantized at once, so that at most one full-precision fused weight is on the device besides the final
ones. Called once, on the thread that will use the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine_runtime.models.moss_lm import MossLMConfig, rotary_tables
from engine_runtime.options import BlockFormats, WeightFormat
from engine_runtime.quantization import Matrix, quantize

WeightSource = Callable[[str], Tensor]
"""Maps a state-dict name to its tensor, on any device and in any float dtype."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; `index` is its index in the KV pool.

    Shapes: qkv [(heads + 2 kv_heads) * head_dim, H], o [H, heads * head_dim], gate_up [2 I, H] (gate first),
    down [H, I]; norms [H], q_norm and k_norm [head_dim].
    """

    index: int
    input_norm: Tensor
    qkv: Matrix
    q_norm: Tensor
    k_norm: Tensor
    o: Matrix
    post_norm: Tensor
    gate_up: Matrix
    down: Matrix

    @property
    def matrices(self) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        """All matrices of the layer, in order of use."""
        return self.qkv, self.o, self.gate_up, self.down


@dataclass(frozen=True, slots=True)
class Tail:
    """A tail with its norm and head; `output` names its logits."""

    output: str
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Matrix


@dataclass(frozen=True, slots=True)
class Network:
    """All weights. `embedding` [text_vocab + audio_vocab, H] is read by merged ids; `cos` and `sin`
    [max_seq_len, head_dim], sin with the sign of the half rotation in it."""

    config: MossLMConfig
    embedding: Tensor
    trunk: tuple[LayerWeights, ...]
    text: Tail
    audio: Tail
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
    take = _Taker(source, dtype, device)
    cos, sin = rotary_tables(config, torch.arange(max_seq_len))
    half = config.head_dim // 2
    signed = torch.cat((-sin[:, :half], sin[:, half:]), dim=-1)
    first_text, first_audio = config.shared_layers, config.shared_layers + config.text_layers
    with torch.inference_mode():
        return Network(
            config=config,
            embedding=take.table("model.embed_tokens.weight", "model.audio_embed.weight"),
            trunk=take.layers("model.shared_block", config.shared_layers, 0, formats.trunk),
            text=Tail(
                "logits",
                take.layers("model.text_block", config.text_layers, first_text, formats.tails),
                take.tensor("model.text_norm.weight"),
                take.matrix(formats.heads, "text_lm_head.weight"),
            ),
            audio=Tail(
                "audio_logits",
                take.layers("model.audio_block", config.audio_layers, first_audio, formats.tails),
                take.tensor("model.audio_norm.weight"),
                take.matrix(formats.heads, "audio_lm_head.weight"),
            ),
            cos=cos.to(device, dtype),
            sin=signed.to(device, dtype),
        )


@dataclass(frozen=True, slots=True)
class _Taker:
    """Copies tensors from the source to the device."""

    source: WeightSource
    dtype: torch.dtype
    device: torch.device

    def tensor(self, name: str) -> Tensor:
        """A copy, so that the source is not kept alive."""
        return self.source(name).detach().to(self.device, self.dtype, copy=True)

    def table(self, *names: str) -> Tensor:
        """Tables [rows, H] concatenated along the rows."""
        parts = [self.source(name).detach() for name in names]
        whole = torch.empty(
            (sum(part.shape[0] for part in parts), parts[0].shape[1]), dtype=self.dtype, device=self.device
        )
        for piece, part in zip(whole.split([part.shape[0] for part in parts]), parts, strict=True):
            piece.copy_(part)
        return whole

    def matrix(self, weight_format: WeightFormat, *names: str) -> Matrix:
        """Weights [out, in] concatenated along the outputs, in their format."""
        return quantize(self.table(*names), weight_format)

    def layers(
        self, block: str, count: int, first_index: int, weight_format: WeightFormat
    ) -> tuple[LayerWeights, ...]:
        """A stack of layers that owns the KV layers from `first_index` on."""
        return tuple(self._layers(block, count, first_index, weight_format))

    def _layers(
        self, block: str, count: int, first_index: int, weight_format: WeightFormat
    ) -> Iterator[LayerWeights]:
        for index in range(count):
            name = f"{block}.layers.{index}"
            attention = f"{name}.self_attn"
            yield LayerWeights(
                index=first_index + index,
                input_norm=self.tensor(f"{name}.input_layernorm.weight"),
                qkv=self.matrix(weight_format, *(f"{attention}.{part}_proj.weight" for part in "qkv")),
                q_norm=self.tensor(f"{attention}.q_norm.weight"),
                k_norm=self.tensor(f"{attention}.k_norm.weight"),
                o=self.matrix(weight_format, f"{attention}.o_proj.weight"),
                post_norm=self.tensor(f"{name}.post_attention_layernorm.weight"),
                gate_up=self.matrix(
                    weight_format, f"{name}.mlp.gate_proj.weight", f"{name}.mlp.up_proj.weight"
                ),
                down=self.matrix(weight_format, f"{name}.mlp.down_proj.weight"),
            )
            if self.device.type == "cuda":
                # Avoids fragmentation: a later small tensor in this free block would make the rest unusable.
                torch.cuda.empty_cache()
