"""A GGUF file, written here number by number, read into the tensors of our network."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine_runtime.models.moss_lm import MossLM

HIDDEN, INNER, HEADS, KV_HEADS, DIM, LAYERS, VOCAB = 64, 96, 4, 2, 16, 3, 40
LLAMA = {
    "block_count": LAYERS,
    "embedding_length": HIDDEN,
    "feed_forward_length": INNER,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "rope.dimension_count": DIM,
    "vocab_size": VOCAB,
}
F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8


@pytest.fixture(scope="module")
def gguf_weights(recipe: Callable[[str], ModuleType]) -> ModuleType:
    return recipe("gguf_weights")


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def entry(value: Any) -> bytes:
    """A value of the metadata, after the number of its kind."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)


def write(path: Path, values: dict[str, Any], tensors: dict[str, tuple[tuple[int, ...], int, bytes]]) -> Path:
    """`tensors`: shape, kind and stored bytes of each."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    head += b"".join(text(key) + entry(value) for key, value in values.items())
    data = b""
    for name, (shape, kind, stored) in tensors.items():
        sizes = struct.pack(f"<{len(shape)}Q", *shape[::-1])
        head += text(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", kind, len(data))
        data += stored + bytes(-len(stored) % 32)
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return path


def stored_q4_1(shape: tuple[int, int], seed: int) -> tuple[bytes, Tensor]:
    """Random bytes of a matrix, and what they mean, computed number by number."""
    rng, stored, wanted = np.random.default_rng(seed), b"", []
    for _ in range(shape[0] * shape[1] // 32):
        scale, least = rng.uniform(0.01, 0.02), rng.uniform(-0.2, -0.1)
        packed = rng.integers(0, 256, 16, dtype=np.uint8)
        block = struct.pack("<ee", scale, least)
        scale, least = struct.unpack("<ee", block)
        stored += block + packed.tobytes()
        wanted += [least + scale * (int(byte) & 15) for byte in packed]
        wanted += [least + scale * (int(byte) >> 4) for byte in packed]
    return stored, torch.tensor(wanted, dtype=torch.float32).view(shape)


def paired(weight: Tensor) -> Tensor:
    """Rows of q or k as a GGUF file has them: those that RoPE turns together are neighbours."""
    rows = [
        head * DIM + pair + half * DIM // 2
        for head in range(weight.shape[0] // DIM)
        for pair in range(DIM // 2)
        for half in range(2)
    ]
    return weight[rows]


def make_checkpoint(path: Path, *, has_head: bool) -> tuple[Path, dict[str, Tensor]]:
    """A file with every tensor, and what the layers' weights are by their names in it."""
    wide = HEADS * DIM
    shapes = {
        "attn_q": (wide, HIDDEN),
        "attn_k": (KV_HEADS * DIM, HIDDEN),
        "attn_v": (KV_HEADS * DIM, HIDDEN),
        "attn_output": (HIDDEN, wide),
        "ffn_gate": (INNER, HIDDEN),
        "ffn_up": (INNER, HIDDEN),
        "ffn_down": (HIDDEN, INNER),
    }
    tensors: dict[str, tuple[tuple[int, ...], int, bytes]] = {}
    weights: dict[str, Tensor] = {}

    def add_floats(name: str, *shape: int) -> None:
        weights[name] = torch.rand(shape, generator=torch.Generator().manual_seed(len(tensors)))
        tensors[name] = shape, F32, weights[name].numpy().tobytes()

    for index in range(LAYERS):
        for part, shape in shapes.items():
            name = f"blk.{index}.{part}.weight"
            stored, weights[name] = stored_q4_1(shape, len(tensors))
            tensors[name] = shape, Q4_1, stored
        for part in ("attn_norm", "ffn_norm"):
            add_floats(f"blk.{index}.{part}.weight", HIDDEN)
    add_floats("token_embd.weight", VOCAB, HIDDEN)
    add_floats("output_norm.weight", HIDDEN)
    if has_head:
        add_floats("output.weight", VOCAB, HIDDEN)
    values: dict[str, Any] = {"general.name": "tiny", "tokenizer.ggml.tokens": ["a", "Ġb"]}
    values |= {f"llama.{key}": value for key, value in LLAMA.items()}
    values |= {"llama.rope.freq_base": 1e5, "llama.attention.layer_norm_rms_epsilon": 1e-5}
    return write(path / "tiny.gguf", values, tensors), weights


@pytest.mark.parametrize("has_head", [False, True])
def test_a_checkpoint_fills_our_network(gguf_weights: ModuleType, tmp_path: Path, has_head: bool) -> None:
    path, stored = make_checkpoint(tmp_path, has_head=has_head)
    file = gguf_weights.GgufFile(path)
    assert file.values["tokenizer.ggml.tokens"] == ["a", "Ġb"]
    config = gguf_weights.config_of(file.values, tail_layers=1, audio_vocab=8, modality_pad=3)
    assert (config.shared_layers, config.text_layers, config.audio_layers) == (2, 1, 1)
    assert (config.rope_theta, config.rms_norm_eps, config.qk_norm) == (1e5, 1e-5, False)
    weights = gguf_weights.weights_of(file, config)
    model = MossLM(config)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert (set(missing), unexpected) == ({"model.audio_embed.weight", "audio_lm_head.weight"}, [])
    for block, first, count in (("shared", 0, 2), ("text", 2, 1), ("audio", 2, 1)):
        for layer in range(count):
            ours, theirs = f"model.{block}_block.layers.{layer}", f"blk.{first + layer}"
            down, norm = weights[f"{ours}.mlp.down_proj.weight"], weights[f"{ours}.input_layernorm.weight"]
            torch.testing.assert_close(down, stored[f"{theirs}.ffn_down.weight"])
            assert torch.equal(norm, stored[f"{theirs}.attn_norm.weight"])
            for part in "qk":
                weight = weights[f"{ours}.self_attn.{part}_proj.weight"]
                torch.testing.assert_close(paired(weight), stored[f"{theirs}.attn_{part}.weight"])
    head = "output.weight" if has_head else "token_embd.weight"
    assert torch.equal(weights["text_lm_head.weight"], stored[head])


def test_the_audio_tail_has_memory_of_its_own(gguf_weights: ModuleType, tmp_path: Path) -> None:
    file = gguf_weights.GgufFile(make_checkpoint(tmp_path, has_head=False)[0])
    config = gguf_weights.config_of(file.values, tail_layers=1, audio_vocab=8, modality_pad=3)
    weights = gguf_weights.weights_of(file, config)
    addresses = [tensor.data_ptr() for tensor in weights.values()]
    assert len(set(addresses)) == len(addresses)


def test_numbers_of_eight_bits_and_of_half_precision(gguf_weights: ModuleType, tmp_path: Path) -> None:
    whole = np.arange(-32, 32, dtype=np.int8).reshape(2, 32)
    blocks = b"".join(
        struct.pack("<e", scale) + row.tobytes() for scale, row in zip((0.5, 2), whole, strict=True)
    )
    half = np.array([1.5, -0.25], np.float16)
    tensors = {"whole": ((2, 32), Q8_0, blocks), "half": ((2,), F16, half.tobytes())}
    file = gguf_weights.GgufFile(write(tmp_path / "a.gguf", {"general.alignment": 32}, tensors))
    assert torch.equal(file.tensor("whole"), torch.tensor(whole * np.array([[0.5], [2.0]], np.float32)))
    assert file.tensor("half").tolist() == [1.5, -0.25]


def test_files_that_are_no_checkpoint(gguf_weights: ModuleType, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"RIFF and more")
    with pytest.raises(SystemExit, match="is not a GGUF file of version 3"):
        gguf_weights.GgufFile(other)
    path = write(tmp_path / "a.gguf", {}, {"odd": ((32,), 14, bytes(40)), "cut": ((64,), F32, bytes(256))})
    file = gguf_weights.GgufFile(path)
    with pytest.raises(SystemExit, match="odd is stored in kind 14"):
        file.tensor("odd")
    path.write_bytes(path.read_bytes()[:-32])
    with pytest.raises(SystemExit, match="ends within cut"):
        file.tensor("cut")
