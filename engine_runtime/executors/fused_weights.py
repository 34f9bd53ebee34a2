"""The weights of the language model as the executors read them: fused projections, one embedding table.

In: a source of tensors by their state-dict names, and a function that packs a weight for an executor. Out: a
`FusedNetwork`: one product for q, k and v, one for gate and up, one embedding table for merged ids, and the
index of each layer in the KV pool. Each tensor is read once and packed at once, so that at most one unpacked
weight is on the device besides the final ones. Called once, on the thread that will use the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from engine_runtime.models.moss_lm import MossLMConfig, rotary_tables
from engine_runtime.options import BlockFormats, WeightFormat

WeightSource = Callable[[str], Tensor]
"""Maps a state-dict name to its tensor, on any device and in any float dtype."""
Packed = TypeVar("Packed")
"""A weight in the form in which an executor multiplies by it."""
Pack = Callable[[Sequence[Tensor], WeightFormat], Packed]
"""Packs weights [out, in], concatenated along the outputs, in a format."""

FUSED_PROJECTIONS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""The products of a layer, each with the modules whose outputs it concatenates."""
NORMS = {
    "input_norm": "input_layernorm",
    "post_norm": "post_attention_layernorm",
}
"""The norms of a layer, each with its module."""
QK_NORMS = {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}
"""Those of queries and keys, which a layer has if the config's `qk_norm` is set."""
EMBEDDINGS = ("model.embed_tokens", "model.audio_embed")
"""Modules of the embedding table, in the order of merged ids."""


@dataclass(frozen=True, slots=True)
class FusedLayer(Generic[Packed]):
    """One layer; `index` is its index in the KV pool.

    Products: qkv [H -> (heads + 2 kv_heads) * head_dim], o [heads * head_dim -> H], gate_up [H -> 2 I] (gate
    first), down [I -> H]. Norms [H], q_norm and k_norm [head_dim], None in a network without them.
    """

    index: int
    input_norm: Tensor
    qkv: Packed
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Packed
    post_norm: Tensor
    gate_up: Packed
    down: Packed

    @property
    def matrices(self) -> tuple[Packed, Packed, Packed, Packed]:
        """All products of the layer, in order of use."""
        return self.qkv, self.o, self.gate_up, self.down


@dataclass(frozen=True, slots=True)
class FusedTail(Generic[Packed]):
    """A tail with its norm [H] and head [H -> vocabulary]; `output` names its logits."""

    output: str
    layers: tuple[FusedLayer[Packed], ...]
    norm: Tensor
    head: Packed


@dataclass(frozen=True, slots=True)
class FusedNetwork(Generic[Packed]):
    """All weights. `embedding` [text_vocab + audio_vocab, H] is read by merged ids."""

    config: MossLMConfig
    embedding: Tensor
    trunk: tuple[FusedLayer[Packed], ...]
    text: FusedTail[Packed]
    audio: FusedTail[Packed]


def fuse(
    config: MossLMConfig,
    source: WeightSource,
    pack: Pack[Packed],
    *,
    formats: BlockFormats,
    dtype: torch.dtype,
    device: torch.device,
) -> FusedNetwork[Packed]:
    """Read every weight from `source`. `dtype` is that of norms and embeddings."""
    modules_of_norms = NORMS | QK_NORMS if config.qk_norm else NORMS
    first_text, first_audio = config.shared_layers, config.shared_layers + config.text_layers

    def tensor(name: str) -> Tensor:
        # A copy, so that the source is not kept alive.
        return source(name).detach().to(device, dtype, copy=True)

    def product(modules: Sequence[str], weight_format: WeightFormat) -> Packed:
        return pack([source(f"{module}.weight").detach() for module in modules], weight_format)

    def layers(
        block: str, count: int, first: int, weight_format: WeightFormat
    ) -> Iterator[FusedLayer[Packed]]:
        for index in range(count):
            prefix = f"model.{block}.layers.{index}"
            norms = {name: tensor(f"{prefix}.{module}.weight") for name, module in modules_of_norms.items()}
            products = {
                name: product([f"{prefix}.{module}" for module in modules], weight_format)
                for name, modules in FUSED_PROJECTIONS.items()
            }
            yield FusedLayer(
                index=first + index,
                input_norm=norms["input_norm"],
                qkv=products["qkv"],
                q_norm=norms.get("q_norm"),
                k_norm=norms.get("k_norm"),
                o=products["o"],
                post_norm=norms["post_norm"],
                gate_up=products["gate_up"],
                down=products["down"],
            )
            if device.type == "cuda":
                # Avoids fragmentation: a later small tensor in this free block would make the rest unusable.
                torch.cuda.empty_cache()

    def tail(output: str, name: str, count: int, first: int) -> FusedTail[Packed]:
        stack = tuple(layers(f"{name}_block", count, first, formats.tails))
        norm = tensor(f"model.{name}_norm.weight")
        return FusedTail(output, stack, norm, product([f"{name}_lm_head"], formats.heads))

    with torch.inference_mode():
        return FusedNetwork(
            config=config,
            embedding=concatenated([source(f"{module}.weight") for module in EMBEDDINGS], dtype, device),
            trunk=tuple(layers("shared_block", config.shared_layers, 0, formats.trunk)),
            text=tail("logits", "text", config.text_layers, first_text),
            audio=tail("audio_logits", "audio", config.audio_layers, first_audio),
        )


def concatenated(parts: Sequence[Tensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Tables [rows, H] as one, along the rows; a copy."""
    sizes = [part.shape[0] for part in parts]
    table = torch.empty((sum(sizes), parts[0].shape[1]), dtype=dtype, device=device)
    for rows, part in zip(table.split(sizes), parts, strict=True):
        rows.copy_(part.detach())
    return table


def signed_rotary_tables(
    config: MossLMConfig, max_seq_len: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """cos and sin [max_seq_len, head_dim], sin with the sign of the half rotation in it."""
    cos, sin = rotary_tables(config, torch.arange(max_seq_len))
    half = config.head_dim // 2
    signed = torch.cat((-sin[:, :half], sin[:, half:]), dim=-1)
    return cos.to(device, dtype), signed.to(device, dtype)
