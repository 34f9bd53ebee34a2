"""Disturbances of user speech on the training device: room, noise, telephone, tempo, vocal tract.

In and out: waveforms [B, n] at 16 kHz, or log-mels [B, bands, T]. All draws come from the generator.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine_runtime.codec.speech_tokenizer.mel_filters import LINEAR_HZ_PER_MEL, LOG_START_HZ, LOG_STEP


def augment(wave: Tensor, generator: torch.Generator, rate: int = 16_000) -> Tensor:
    """Microphone, room, noise, telephone and level: [B, n] -> [B, n]. Each effect but the level hits only
    some rows."""
    batch, n = wave.shape
    draw = _Draw(generator, wave.device)
    size = 1 << (n + rate // 2 - 1).bit_length()  # holds the wave and the longest echo
    spectrum = torch.fft.rfft(wave, size) * _microphone(draw, batch, size // 2 + 1)
    wave = torch.fft.irfft(spectrum * torch.fft.rfft(_room(draw, batch, rate), size), size)[:, :n]
    wave = wave + _noise(draw, wave) + _voices_around(draw, wave) + _music(draw, wave, rate)
    wave = _gain_control(draw, wave)
    wave = torch.fft.irfft(torch.fft.rfft(wave, size) * _band(draw, batch, size // 2 + 1, rate), size)[:, :n]
    peak = wave.abs().amax(1, keepdim=True).clamp_min(1e-3)
    wave = _converter(draw, wave / peak)
    return wave * 10 ** ((-20 + 19 * draw.uniform(batch, 1)) / 20)


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
    return 10 ** (_through(knots, bins) / 20)


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
    """[B, n]: white to brown noise, 5 to 40 dB below the speech of its row, for seven rows of ten."""
    batch, n = wave.shape
    tilt = 1.0 / (1.0 + torch.arange(n // 2 + 1, device=draw.device) / 40.0) ** (1.2 * draw.uniform(batch, 1))
    noise = torch.fft.irfft(torch.fft.rfft(draw.normal(batch, n)) * tilt, n)
    return _below(wave, noise, 5 + 35 * draw.uniform(batch, 1)) * (draw.uniform(batch, 1) < 0.7)


def _below(wave: Tensor, disturbance: Tensor, decibels: Tensor) -> Tensor:
    """`disturbance` [B, n] so many decibels [B, 1] below the speech of its row."""
    sounding = (wave.abs() > 1e-3).sum(1, keepdim=True).clamp_min(1)
    speech_rms = (wave.square().sum(1, keepdim=True) / sounding).sqrt()
    own_rms = disturbance.square().mean(1, keepdim=True).sqrt().clamp_min(1e-6)
    return disturbance / own_rms * speech_rms * 10 ** (-decibels / 20)


def _voices_around(draw: _Draw, wave: Tensor) -> Tensor:
    """[B, n]: four other rows at once, 8 to 25 dB below, for one row of seven."""
    batch = len(wave)
    babble = sum(wave.roll((shift, 4_001 * shift), (0, 1)) for shift in (1, 2, 3, 5))
    assert isinstance(babble, Tensor)
    return _below(wave, babble, 8 + 17 * draw.uniform(batch, 1)) * (draw.uniform(batch, 1) < 0.14)


def _music(draw: _Draw, wave: Tensor, rate: int) -> Tensor:
    """[B, n]: chords of three notes with four harmonics, two a second, 5 to 25 dB below; one row of ten."""
    batch, n = wave.shape
    time = torch.arange(n, device=draw.device) / rate
    chord = (time * 2).long()
    tones = torch.zeros_like(wave)
    for _ in range(3):
        steps = (draw.uniform(batch, int(chord[-1]) + 1) * 36).floor()
        phase = torch.cumsum(110 * 2 ** (steps / 12)[:, chord] / rate, 1) * 2 * torch.pi
        tones += sum(torch.sin(harmonic * phase) / harmonic for harmonic in range(1, 5))
    tones = tones * torch.exp(-3 * (time * 2 - chord))
    return _below(wave, tones, 5 + 20 * draw.uniform(batch, 1)) * (draw.uniform(batch, 1) < 0.1)


def _gain_control(draw: _Draw, wave: Tensor) -> Tensor:
    """A gain that wanders by up to 9 dB, for three rows of ten."""
    batch, n = wave.shape
    knots = (draw.uniform(batch, 1, 7) - 0.5) * 18 * (draw.uniform(batch, 1, 1) < 0.3)
    return wave * 10 ** (_through(knots, n) / 20)


def _band(draw: _Draw, batch: int, bins: int, rate: int) -> Tensor:
    """Gains [B, bins]: no more than 3.3 to 7.5 kHz for four rows of ten, half of them without lows, too."""
    hertz = torch.linspace(0, rate / 2, bins, device=draw.device)[None]
    top = 3_300 + 4_200 * draw.uniform(batch, 1) ** 2
    bottom = 80 + 240 * draw.uniform(batch, 1)
    limited = draw.uniform(batch, 1)
    upper = torch.where(limited < 0.4, torch.sigmoid((top - hertz) / 60), 1.0)
    return upper * torch.where(limited < 0.2, torch.sigmoid((hertz - bottom) / 15), 1.0)


def _converter(draw: _Draw, wave: Tensor) -> Tensor:
    """[B, n] of peak 1: clipped in one row of ten, 8-bit mu-law in another one."""
    batch = len(wave)
    which = draw.uniform(batch, 1)
    limit = 0.15 + 0.5 * draw.uniform(batch, 1)
    clipped = wave.clamp(-limit, limit) / limit
    mu = torch.log1p(255 * wave.abs()) / np.log(256) * wave.sign()
    stepped = (mu * 127).round() / 127
    telephone = torch.expm1(stepped.abs() * np.log(256)) / 255 * stepped.sign()
    return torch.where(which < 0.1, clipped, torch.where(which < 0.2, telephone, wave))


def warp_time(mel: Tensor, generator: torch.Generator, views: int = 1) -> Tensor:
    """Other tempi: the frames of log-mels [B, bands, T] are read at a local speed of 0.75 to 1.35 for six
    rows of ten; start and end stay. `views` rows of one utterance, B / views apart, are warped alike."""
    batch, _, frames = mel.shape
    draw = _Draw(generator, mel.device)
    each = batch // views
    strength = 0.3 * (draw.uniform(each, 1, 1) < 0.6)
    speed = torch.exp(strength * (2 * draw.uniform(each, 1, 9) - 1))
    place = torch.cumsum(_through(speed, frames), 1)
    place = (place - place[:, :1]) / (place[:, -1:] - place[:, :1]) * (frames - 1)
    return _read_at(mel.transpose(1, 2), place.repeat(views, 1)).transpose(1, 2)


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
    return _read_at(mel, _mel_scale(_hertz(centre)[None] * amount) / top * (bands + 1) - 1)


def _through(knots: Tensor, size: int) -> Tensor:
    """[B, 1, knots] -> [B, size], straight lines between the knots."""
    return torch.nn.functional.interpolate(knots, size, mode="linear", align_corners=True)[:, 0]


def _read_at(values: Tensor, place: Tensor) -> Tensor:
    """[B, n, m] at the places [B, n] of its second axis, linearly interpolated."""
    last = values.shape[1] - 1
    place = place.clamp(0, last)
    low = place.floor().clamp_max(last - 1).long()
    part = (place - low)[..., None]
    index = low[..., None].expand(-1, -1, values.shape[2])
    return values.gather(1, index) * (1 - part) + values.gather(1, index + 1) * part


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
