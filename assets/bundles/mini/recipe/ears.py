"""The ears: the causal speech encoder, and what reads its states as characters.

In: log-mel [B, 80, T] as the bundle's speech encoder takes it ("running_max"), T a multiple of 8. Out: soft
states and codes at 12.5 Hz (`WhisperVQ`, which the runtime streams), and of both the characters by CTC: the
head reads soft states and stays with the bundle, the reader reads codes and exists for training and for
measuring what codes still say.

No part looks ahead. CTC may write a character later than it is said, so the ears choose their delay
themselves; what is to be written needs some silence behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from sentences import LETTERS, plain
from torch import Tensor, nn
from whisper_base import ENCODER, FINAL_NORM

from engine_runtime.models.whisper_vq import WhisperVQ, WhisperVQConfig, sinusoids

SLOTS = 4  # places for characters in one code: 50 a second
BLANK = 0
SHARD_BYTES = 15_000_000


class Head(nn.Module):
    """Soft states [B, n, d] -> logits of blank and characters [B, 4n, 29]; each code on its own."""

    WIDTH = 256

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, SLOTS * self.WIDTH)
        self.out = nn.Linear(self.WIDTH, len(LETTERS) + 1)

    def forward(self, states: Tensor) -> Tensor:
        """[B, n, d] -> [B, 4n, 29]."""
        batch, n, _ = states.shape
        slots = nn.functional.gelu(self.up(self.norm(states))).view(batch, SLOTS * n, self.WIDTH)
        logits: Tensor = self.out(slots)
        return logits


class Reader(nn.Module):
    """Quantized states [B, n, d] -> logits [B, 4n, 29]; sees all codes of the window, as a language model
    does that replies when the turn is over."""

    WIDTH, LAYERS = 256, 3

    def __init__(self, width: int, max_slots: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, SLOTS * self.WIDTH)
        layer = nn.TransformerEncoderLayer(
            self.WIDTH, 4, 4 * self.WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, self.LAYERS, enable_nested_tensor=False)
        self.out = nn.Linear(self.WIDTH, len(LETTERS) + 1)
        self.register_buffer("positions", sinusoids(max_slots, self.WIDTH), persistent=False)

    def forward(self, quantized: Tensor) -> Tensor:
        """[B, n, d] -> [B, 4n, 29]."""
        batch, n, _ = quantized.shape
        slots = self.up(quantized).view(batch, SLOTS * n, self.WIDTH)
        assert isinstance(self.positions, Tensor)
        logits: Tensor = self.out(self.layers(slots + self.positions[: SLOTS * n]))
        return logits


class Follower(nn.Module):
    """Training only: the encoder's frames -> what Whisper's own encoder says of an earlier moment."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, width)
        with torch.no_grad():
            self.out.weight.copy_(torch.eye(width))
            self.out.bias.zero_()

    def forward(self, frames: Tensor) -> Tensor:
        """[B, 4n, d] -> the same shape."""
        states: Tensor = self.out(self.norm(frames))
        return states


class Ears(nn.Module):
    """All of it."""

    def __init__(self, config: WhisperVQConfig = ENCODER) -> None:
        super().__init__()
        self.encoder = WhisperVQ(config)
        self.head = Head(config.d_model)
        self.reader = Reader(config.d_model, config.max_positions)
        self.follower = Follower(config.d_model)

    def start_from(self, whisper: Mapping[str, Tensor]) -> Ears:
        """Take over Whisper's layers (as many as there are) and its final norm; self. The codebook stays."""
        known = self.encoder.state_dict()
        self.encoder.load_state_dict(
            {name: value for name, value in whisper.items() if name in known}, strict=False
        )
        norm = {part: whisper[f"{FINAL_NORM}.{part}"] for part in ("weight", "bias")}
        self.head.norm.load_state_dict(norm)
        self.follower.norm.load_state_dict(norm)
        return self

    def soft(self, mel: Tensor) -> tuple[Tensor, Tensor]:
        """Frames at 50 Hz [B, T / 2, d], and the soft states [B, T / 8, d], their means."""
        frames = self.encoder.encode_frames(mel)
        return frames, self.encoder.pool(frames)

    @torch.no_grad()
    def hear(self, mel: Tensor) -> tuple[list[str], list[str]]:
        """What is read from soft states, and from codes, of each row."""
        _, states = self.soft(mel)
        entries = self.encoder.encoder.codebook(self.encoder.quantize(states))
        return greedy(self.head(states)), greedy(self.reader(entries))


def encode(text: str) -> list[int]:
    """Characters of a text as ids."""
    return [LETTERS.index(letter) + 1 for letter in plain(text)]


def greedy(logits: Tensor) -> list[str]:
    """The texts of CTC's best paths of [B, n, 29]."""
    texts = []
    for row in logits.argmax(-1).cpu().tolist():
        kept = [new for old, new in zip([BLANK, *row], row, strict=False) if new not in (old, BLANK)]
        texts.append(plain("".join(LETTERS[index - 1] for index in kept)))
    return texts


def save_shards(module: nn.Module, folder: Path) -> None:
    """The 16-bit state as ears-00.safetensors and so on, no file much larger than `SHARD_BYTES`; the files
    of before are replaced when all are written."""
    shards: list[dict[str, Tensor]] = [{}]
    for name, value in module.state_dict().items():
        half = value.detach().half().cpu().contiguous()
        if shards[-1] and _bytes([*shards[-1].values(), half]) > SHARD_BYTES:
            shards.append({})
        shards[-1][name] = half
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / f".ears-{index:02}.unfinished" for index in range(len(shards))]
    for shard, file in zip(shards, written, strict=True):
        save_file(shard, file)
    for index, file in enumerate(written):
        file.rename(folder / f"ears-{index:02}.safetensors")


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def load_shards(folder: Path) -> dict[str, Tensor]:
    """What `save_shards` wrote, float32; SystemExit if there is nothing."""
    files = sorted(folder.glob("ears-*.safetensors"))
    if not files:
        raise SystemExit(f"{folder} has no ears-00.safetensors")
    return {name: value.float() for file in files for name, value in load_file(file).items()}
