"""Training data on the training device: questions, and answers made of units.

Everything is a batch of fixed shape, made on the device from flat int16 waveforms: no data loader, no host
copies.
"""

from __future__ import annotations

from pathlib import Path

import domain
import numpy as np
import torch
from torch import Tensor

GRID16, GRID24 = 1_280, 1_920


Segment = tuple[int, int, int]  # position in the window, start in the flat samples, length


def lay_out(flat: Tensor, segments: list[list[Segment]], samples: int) -> Tensor:
    """Copy pieces of flat int16 into windows, a list of pieces for each row -> [rows, samples] float32."""
    most = max(len(row) for row in segments)
    table = torch.tensor([row + [(0, 0, 0)] * (most - len(row)) for row in segments], device=flat.device)
    time = torch.arange(samples, device=flat.device)[None]
    wave = torch.zeros(len(segments), samples, device=flat.device)
    for column in range(most):
        position, start, length = table[:, column].split(1, dim=1)  # each [rows, 1]
        inside = (time >= position) & (time < position + length)
        at = (time - position + start).clamp_(0, len(flat) - 1)
        wave += torch.where(inside, flat[at].float() / 32768, 0.0)
    return wave


class Questions:
    """Flat user speech; `windows` packs several utterances into windows of `samples`."""

    def __init__(self, path: Path, device: str) -> None:
        data = np.load(path)
        self.text = data["question"].tolist()
        self.voice = data["voice"].tolist()
        self.offsets = data["offsets"]
        self.samples = torch.from_numpy(data["samples"]).to(device)
        self.lengths = np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.text)

    def windows(self, rng: np.random.Generator, batch: int, samples: int) -> tuple[Tensor, list[list[str]]]:
        """[batch, samples] float32 and the questions in each.

        Up to four whole utterances, as far as they fit, with random pauses.
        """
        segments, texts = [], []
        for _ in range(batch):
            position, said, row = int(rng.integers(0, 8_000)), [], []
            for pick in rng.integers(len(self), size=4).tolist():
                length = int(self.lengths[pick])
                if position + length + 800 > samples:
                    continue
                row.append((position, int(self.offsets[pick]), length))
                said.append(self.text[pick])
                position += length + int(rng.integers(2_400, 12_000))
            segments.append(row or [(0, 0, 0)])
            texts.append(said)
        return lay_out(self.samples, segments, samples), texts


class Answers:
    """The assistant's speech: units one after the other, each on the grid."""

    def __init__(self, path: Path, device: str) -> None:
        data = np.load(path)
        self.units = {str(unit): i for i, unit in enumerate(data["unit"])}
        self.offsets = {16: data["offsets16"], 24: data["offsets24"]}
        self.samples = {
            16: torch.from_numpy(data["samples16"]).to(device),
            24: torch.from_numpy(data["samples24"]).to(device),
        }
        self.codes = np.diff(self.offsets[16]) // GRID16  # codes of each unit

    def num_codes(self, units: tuple[str, ...]) -> int:
        """Codes of an answer."""
        return int(sum(self.codes[self.units[unit]] for unit in units))

    def batch(self, answers: list[tuple[str, ...]], codes: int, kilohertz: int) -> Tensor:
        """[batch, codes * grid] float32 at 16 or 24 kHz, zeros behind the end (or cut there)."""
        samples = codes * {16: GRID16, 24: GRID24}[kilohertz]
        offsets = self.offsets[kilohertz]
        segments = []
        for units in answers:
            position, row = 0, []
            for index in (self.units[unit] for unit in units):
                start, length = int(offsets[index]), int(offsets[index + 1] - offsets[index])
                take = min(length, samples - position)
                if take > 0:
                    row.append((position, start, take))
                position += length
            segments.append(row)
        return lay_out(self.samples[kilohertz], segments, samples)


def training_answers(rng: np.random.Generator, random_strings: int) -> list[tuple[str, ...]]:
    """Distinct answers of the training dialogues, and random unit strings for more joints between units."""
    dialogues = domain.all_dialogues()
    known = list(
        dict.fromkeys(turn.units for d in dialogues if not d.held_out for turn in d.turns if turn.units)
    )
    units = domain.all_units(dialogues)
    extra = [
        tuple(units[i] for i in rng.integers(0, len(units), rng.integers(2, 5)))
        for _ in range(random_strings)
    ]
    return known + extra
