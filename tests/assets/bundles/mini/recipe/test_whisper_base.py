"""Whisper's encoder out of a CTranslate2 file."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from engine_runtime.models.whisper_vq import WhisperVQConfig
from tests.assets.conftest import Recipe

WIDTH, FFN, BANDS, POSITIONS, LAYERS = 8, 12, 5, 16, 6
SMALL = WhisperVQConfig(
    num_mel_bins=BANDS,
    d_model=WIDTH,
    heads=2,
    ffn=FFN,
    layers=LAYERS,
    max_positions=POSITIONS,
    codebook_size=4,
)
FLOAT16 = 4


def _text(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def _write(file: Path, variables: dict[str, np.ndarray], aliases: dict[str, str], version: int = 6) -> None:
    """As ctranslate2.specs does."""
    parts = [struct.pack("<I", version), _text("WhisperSpec"), struct.pack("<II", 3, len(variables))]
    for name, value in variables.items():
        parts += [_text(name), bytes([value.ndim]), *(struct.pack("<I", size) for size in value.shape)]
        parts += [bytes([FLOAT16]), struct.pack("<I", value.nbytes), value.tobytes()]
    parts.append(struct.pack("<I", len(aliases)))
    parts += [_text(name) + _text(variable) for name, variable in aliases.items()]
    file.write_bytes(b"".join(parts))


@pytest.fixture
def variables() -> dict[str, np.ndarray]:
    """The encoder's tensors as CTranslate2 names them, and one of the decoder."""
    rng = np.random.default_rng(0)
    shapes = {
        "encoder/conv1/weight": (WIDTH, BANDS, 3), "encoder/conv1/bias": (WIDTH,),
        "encoder/conv2/weight": (WIDTH, WIDTH, 3), "encoder/conv2/bias": (WIDTH,),
        "encoder/position_encodings/encodings": (POSITIONS, WIDTH),
        "encoder/layer_norm/gamma": (WIDTH,), "encoder/layer_norm/beta": (WIDTH,),
        "decoder/embeddings/weight": (7, WIDTH),
    }  # fmt: skip
    for index in range(LAYERS):
        layer = f"encoder/layer_{index}"
        for norm in ("self_attention", "ffn"):
            shapes |= {f"{layer}/{norm}/layer_norm/{part}": (WIDTH,) for part in ("gamma", "beta")}
        for product, rows, columns in (
            ("self_attention/linear_0", 3 * WIDTH, WIDTH),
            ("self_attention/linear_1", WIDTH, WIDTH),
            ("ffn/linear_0", FFN, WIDTH),
            ("ffn/linear_1", WIDTH, FFN),
        ):
            shapes |= {f"{layer}/{product}/weight": (rows, columns), f"{layer}/{product}/bias": (rows,)}
    made = {name: rng.normal(0, 0.5, shape).astype(np.float16) for name, shape in shapes.items()}
    for index in range(LAYERS):
        made[f"encoder/layer_{index}/self_attention/linear_0/bias"][WIDTH : 2 * WIDTH] = 0
    return made | {"encoder/num_heads": np.array(2, np.float16)}


def test_tensors_are_read_as_they_were_written(
    recipe: Recipe, tmp_path: Path, variables: dict[str, np.ndarray]
) -> None:
    file = tmp_path / "model.bin"
    _write(file, variables, {"decoder/projection/weight": "decoder/embeddings/weight"})
    found = recipe("whisper_base").read_variables(file)
    assert found.keys() == variables.keys() | {"decoder/projection/weight"}
    for name, value in variables.items():
        assert np.array_equal(found[name], value)
    assert np.array_equal(found["decoder/projection/weight"], variables["decoder/embeddings/weight"])


def test_another_format_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    _write(tmp_path / "model.bin", {}, {}, version=5)
    with pytest.raises(SystemExit, match="format 5"):
        recipe("whisper_base").read_variables(tmp_path / "model.bin")


def test_the_encoder_is_torchs_with_the_same_weights(
    recipe: Recipe, variables: dict[str, np.ndarray]
) -> None:
    whisper_base = recipe("whisper_base")
    encoder = whisper_base.WhisperEncoder(SMALL).load(whisper_base.encoder_weights(variables)).eval()
    source = {name: torch.from_numpy(value.astype(np.float32)) for name, value in variables.items()}
    mel = torch.randn(2, BANDS, 12)
    with torch.no_grad():
        x = mel
        for name, stride in (("conv1", 1), ("conv2", 2)):
            weight, bias = source[f"encoder/{name}/weight"], source[f"encoder/{name}/bias"]
            x = nn.functional.gelu(nn.functional.conv1d(x, weight, bias, stride, padding=1))
        x = x.transpose(1, 2) + source["encoder/position_encodings/encodings"][:6]
        for index in range(LAYERS):
            x = _torch_layer(source, f"encoder/layer_{index}")(x)
        norm = (source["encoder/layer_norm/gamma"], source["encoder/layer_norm/beta"])
        wanted = nn.functional.layer_norm(x, (WIDTH,), *norm)
        torch.testing.assert_close(encoder(mel), wanted, rtol=1e-4, atol=1e-4)


def _torch_layer(source: dict[str, torch.Tensor], prefix: str) -> nn.TransformerEncoderLayer:
    layer = nn.TransformerEncoderLayer(
        WIDTH, 2, FFN, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    names = {
        "self_attn.in_proj_": "self_attention/linear_0/", "self_attn.out_proj.": "self_attention/linear_1/",
        "linear1.": "ffn/linear_0/", "linear2.": "ffn/linear_1/",
    }  # fmt: skip
    state = {
        f"{a}{part}": source[f"{prefix}/{b}{part}"] for a, b in names.items() for part in ("weight", "bias")
    }
    for ours, theirs in (("norm1", "self_attention"), ("norm2", "ffn")):
        state[f"{ours}.weight"] = source[f"{prefix}/{theirs}/layer_norm/gamma"]
        state[f"{ours}.bias"] = source[f"{prefix}/{theirs}/layer_norm/beta"]
    layer.load_state_dict(state)
    return layer.eval()
