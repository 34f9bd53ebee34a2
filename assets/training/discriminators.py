"""Discriminators of a vocoder's training, on periods (HiFi-GAN) and resolutions (UnivNet); narrow ones."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import weight_norm

PERIODS = (2, 3, 5, 7, 11)
RESOLUTIONS = ((2048, 512), (1024, 256), (512, 128))  # n_fft, hop


class PeriodDiscriminator(nn.Module):
    """HiFi-GAN's discriminator on the wave folded by a period."""

    def __init__(self, period: int, width: int) -> None:
        super().__init__()
        self.period = period
        widths = [1, 24 * width, 72 * width, 160 * width, 256 * width]
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv2d(a, b, (5, 1), (3, 1), padding=(2, 0))) for a, b in pairwise(widths)
        )
        self.last = weight_norm(nn.Conv2d(widths[-1], widths[-1], (5, 1), padding=(2, 0)))
        self.head = weight_norm(nn.Conv2d(widths[-1], 1, (3, 1), padding=(1, 0)))

    def forward(self, wave: Tensor) -> list[Tensor]:
        """[B, n] -> feature maps, the score last."""
        wave = F.pad(wave, (0, -wave.shape[1] % self.period))
        return _features(wave.view(len(wave), 1, -1, self.period), [*self.layers, self.last], self.head)


class ResolutionDiscriminator(nn.Module):
    """Discriminator on the magnitude spectrogram of one resolution."""

    def __init__(self, n_fft: int, hop: int, width: int) -> None:
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft), persistent=False)
        shapes = [(1, width, 1), (width, width, 2), (width, width, 2), (width, width, 2)]
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv2d(a, b, (3, 9), (1, s), padding=(1, 4))) for a, b, s in shapes
        )
        self.last = weight_norm(nn.Conv2d(width, width, (3, 3), padding=(1, 1)))
        self.head = weight_norm(nn.Conv2d(width, 1, (3, 3), padding=(1, 1)))

    def forward(self, wave: Tensor) -> list[Tensor]:
        """[B, n] -> feature maps, the score last."""
        with torch.autocast(wave.device.type, enabled=False):
            spectrum = torch.stft(
                wave.float(), self.n_fft, self.hop, window=self.window, return_complex=True, center=True
            )
            magnitude = (spectrum.real.square() + spectrum.imag.square() + 1e-9).sqrt()
        return _features(magnitude.transpose(1, 2)[:, None], [*self.layers, self.last], self.head)


def _features(x: Tensor, layers: list[nn.Module], head: nn.Module) -> list[Tensor]:
    features = []
    for layer in layers:
        x = F.leaky_relu(layer(x), 0.1)
        features.append(x)
    return [*features, head(x)]


class Discriminators(nn.Module):
    """All of them. `width` multiplies their channels; at 4 the widest layers are as wide as HiFi-GAN's."""

    def __init__(self, width: int = 1) -> None:
        super().__init__()
        self.all = nn.ModuleList([PeriodDiscriminator(period, width) for period in PERIODS])
        self.all.extend(ResolutionDiscriminator(n_fft, hop, 24 * width) for n_fft, hop in RESOLUTIONS)

    def forward(self, wave: Tensor) -> list[list[Tensor]]:
        """Feature maps of each discriminator."""
        return [discriminator(wave) for discriminator in self.all]


def discriminator_loss(real: list[list[Tensor]], made: list[list[Tensor]]) -> Tensor:
    """Least squares: real waves score 1, made ones 0."""
    return sum(
        ((1 - r[-1].float()) ** 2).mean() + (m[-1].float() ** 2).mean()
        for r, m in zip(real, made, strict=True)
    )


def adversarial_loss(made: list[list[Tensor]]) -> Tensor:
    """Least squares: made waves should score 1."""
    return sum(((1 - features[-1].float()) ** 2).mean() for features in made)


def matching_loss(real: list[list[Tensor]], made: list[list[Tensor]]) -> Tensor:
    """L1 between the feature maps of real and made waves, summed over all layers."""
    return sum(
        (a.float() - b.float()).abs().mean()
        for r, m in zip(real, made, strict=True)
        for a, b in zip(r[:-1], m[:-1], strict=True)
    )
