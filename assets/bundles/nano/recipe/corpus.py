"""Training data on the training device: questions, answers made of units, augmentation.

Everything is a batch of fixed shape, made on the device from flat int16 waveforms: no data loader, no host
copies.
"""

from __future__ import annotations

from pathlib import Path

import domain
import numpy as np
import torch
from torch import Tensor

from engine_runtime.codec.speech_tokenizer.mel_filters import LINEAR_HZ_PER_MEL, LOG_START_HZ, LOG_STEP

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
            segments.append(row)
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


def augment(wave: Tensor, generator: torch.Generator, rate: int = 16_000) -> Tensor:
    """Microphone, room, noise and level: [B, n] -> [B, n]. Each effect but the level hits only some rows."""
    batch, n = wave.shape
    draw = _Draw(generator, wave.device)
    size = 1 << (n + rate // 2 - 1).bit_length()  # holds the wave and the longest echo
    spectrum = torch.fft.rfft(wave, size) * _microphone(draw, batch, size // 2 + 1)
    wave = torch.fft.irfft(spectrum * torch.fft.rfft(_room(draw, batch, rate), size), size)[:, :n]
    wave = wave + _noise(draw, wave)
    peak = wave.abs().amax(1, keepdim=True).clamp_min(1e-3)
    return wave / peak * 10 ** ((-20 + 19 * draw.uniform(batch, 1)) / 20)


class _Draw:
    """Random tensors of one generator on its device."""

    def __init__(self, generator: torch.Generator, device: torch.device) -> None:
        self.generator, self.device = generator, device

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, device=self.device, generator=self.generator)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self.device, generator=self.generator)


def _microphone(draw: _Draw, batch: int, bins: int) -> Tensor:
    """Gains [B, bins]: a smooth random equaliser of 8 knots, 4 dB each, for six rows of ten."""
    knots = draw.normal(batch, 1, 8) * 4.0 * (draw.uniform(batch, 1, 1) < 0.6)
    gain_db = torch.nn.functional.interpolate(knots, bins, mode="linear", align_corners=True)[:, 0]
    return 10 ** (gain_db / 20)


def _room(draw: _Draw, batch: int, rate: int) -> Tensor:
    """Impulse responses [B, half a second]: the direct sound and, for four rows of ten, decaying noise.

    The noise falls by 60 dB (a factor of e**6.9) in 0.08 to 0.38 s.
    """
    taps = rate // 2
    seconds = 0.08 + 0.3 * draw.uniform(batch, 1)
    decay = torch.exp(-6.9 * torch.arange(taps, device=draw.device) / rate / seconds)
    tail = draw.normal(batch, taps) * decay
    level = (0.1 + 0.5 * draw.uniform(batch, 1)) * (draw.uniform(batch, 1) < 0.4)
    room = tail / tail.norm(dim=1, keepdim=True) * level
    room[:, 0] += 1.0
    return room


def _noise(draw: _Draw, wave: Tensor) -> Tensor:
    """[B, n]: white to brown noise, 8 to 40 dB below the speech of its row, for seven rows of ten."""
    batch, n = wave.shape
    tilt = 1.0 / (1.0 + torch.arange(n // 2 + 1, device=draw.device) / 40.0) ** (1.2 * draw.uniform(batch, 1))
    noise = torch.fft.irfft(torch.fft.rfft(draw.normal(batch, n)) * tilt, n)
    sounding = (wave.abs() > 1e-3).sum(1, keepdim=True).clamp_min(1)
    speech_rms = (wave.square().sum(1, keepdim=True) / sounding).sqrt()
    snr_db = 8 + 32 * draw.uniform(batch, 1)
    noise_rms = noise.square().mean(1, keepdim=True).sqrt().clamp_min(1e-6)
    noise = noise / noise_rms * speech_rms * 10 ** (-snr_db / 20)
    return noise * (draw.uniform(batch, 1) < 0.7)


def warp_mel(
    mel: Tensor, generator: torch.Generator, share: float = 0.5, sample_rate: int = 16_000
) -> Tensor:
    """Other vocal tracts: the frequency axis of a share of log-mels [B, n_mels, T] stretched by 0.84 to 1.19.

    Bands are read at the warped frequency, linearly interpolated (vocal tract length perturbation, Jaitly and
    Hinton 2013).
    """
    batch, bands, _ = mel.shape
    device = mel.device
    amount = torch.exp((torch.rand(batch, 1, device=device, generator=generator) - 0.5) * 0.35)
    amount = torch.where(torch.rand(batch, 1, device=device, generator=generator) < share, amount, 1.0)
    top = _mel_scale(torch.tensor(sample_rate / 2.0, device=device))
    centre = torch.arange(1, bands + 1, device=device) / (bands + 1) * top
    warped = _mel_scale(_hertz(centre)[None] * amount) / top * (bands + 1) - 1
    warped = warped.clamp(0, bands - 1)
    low = warped.floor().clamp_max(bands - 2).long()
    part = (warped - low)[..., None]
    index = low[..., None].expand(-1, -1, mel.shape[2])
    return mel.gather(1, index) * (1 - part) + mel.gather(1, index + 1) * part


def _mel_scale(hertz: Tensor) -> Tensor:
    """Slaney's scale: linear to 1 kHz, then logarithmic."""
    start = LOG_START_HZ / LINEAR_HZ_PER_MEL
    logarithmic = start + torch.log(hertz.clamp_min(LOG_START_HZ) / LOG_START_HZ) / LOG_STEP
    return torch.where(hertz < LOG_START_HZ, hertz / LINEAR_HZ_PER_MEL, logarithmic)


def _hertz(mels: Tensor) -> Tensor:
    """The inverse of `_mel_scale`."""
    start = LOG_START_HZ / LINEAR_HZ_PER_MEL
    logarithmic = LOG_START_HZ * torch.exp((mels.clamp_min(start) - start) * LOG_STEP)
    return torch.where(mels < start, mels * LINEAR_HZ_PER_MEL, logarithmic)
