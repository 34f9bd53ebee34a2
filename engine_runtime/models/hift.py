"""HiFT vocoder: mel to wave with a harmonic source and an inverse short-time Fourier transform.

In: log-mel [B, n_mels, frames] and the noise of the source, or a generator for it. Out: wave [B, frames *
hop]. Parameter names are those of the released `hift.pt` (CosyVoice 2); both spellings of weight-normalized
tensors, and plain folded weights, are accepted on loading. Runs in the thread of its caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

from engine_runtime.errors import BundleError
from engine_runtime.models.limits import HIFT_CONFIG, check_config

HIFT_OVERLAP_FRAMES = 8
"""Frames that the released codec recomputes and holds back per chunk."""


@dataclass(frozen=True, slots=True)
class HiFTConfig:
    """Every dimension of `HiFT`. The defaults are those of the released codec."""

    in_channels: int = 80
    base_channels: int = 512
    nb_harmonics: int = 8
    sampling_rate: int = 24000
    nsf_alpha: float = 0.1
    nsf_sigma: float = 0.003
    nsf_voiced_threshold: float = 10.0
    upsample_rates: tuple[int, ...] = (8, 5, 3)
    upsample_kernel_sizes: tuple[int, ...] = (16, 11, 7)
    n_fft: int = 16
    hop_len: int = 4
    resblock_kernel_sizes: tuple[int, ...] = (3, 7, 11)
    resblock_dilation_sizes: tuple[tuple[int, ...], ...] = ((1, 3, 5),) * 3
    source_resblock_kernel_sizes: tuple[int, ...] = (7, 7, 11)
    source_resblock_dilation_sizes: tuple[tuple[int, ...], ...] = ((1, 3, 5),) * 3
    lrelu_slope: float = 0.1
    audio_limit: float = 0.99
    f0_channels: int = 512

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> HiFTConfig:
        """Build from a table of a manifest. Raises BundleError for an unknown key or lists that do not
        fit."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise BundleError(
                "vocoder config: unknown key(s) {unknown} for a HiFT vocoder", unknown=", ".join(unknown)
            )
        check_config(values, HIFT_CONFIG, "vocoder.config")
        config = cls(**{key: _tuples(value) for key, value in values.items()})
        stages = len(config.upsample_rates)
        lengths = {
            len(config.upsample_kernel_sizes),
            len(config.source_resblock_kernel_sizes),
            len(config.source_resblock_dilation_sizes),
        }
        if lengths != {stages} or len(config.resblock_kernel_sizes) != len(config.resblock_dilation_sizes):
            raise BundleError(
                "vocoder config: the kernel and dilation lists of the HiFT vocoder differ in length"
            )
        return config

    @property
    def hop(self) -> int:
        """Samples per mel frame."""
        return prod(self.upsample_rates) * self.hop_len


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value


def _normed(layer: nn.Module) -> nn.Module:
    return weight_norm(layer)  # type: ignore[no-any-return]


class Snake(nn.Module):
    """x + sin(alpha x)^2 / alpha, one alpha per channel (Ziyin et al., 2020)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, T] -> [B, C, T]."""
        alpha = self.alpha.unsqueeze(-1)
        return x + (x * alpha).sin().square() / (alpha + 1e-9)


class ResidualBlock(nn.Module):
    """Per dilation: snake, dilated convolution, snake, convolution, and the sum with the input."""

    faster: Callable[[ResidualBlock, Tensor], Tensor] | None = None
    """If set, called instead of the code of `forward`, except during export."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()

        def conv(dilation: int) -> nn.Module:
            pad = (kernel - 1) * dilation // 2
            return _normed(nn.Conv1d(channels, channels, kernel, dilation=dilation, padding=pad))

        self.convs1 = nn.ModuleList(conv(dilation) for dilation in dilations)
        self.convs2 = nn.ModuleList(conv(1) for _ in dilations)
        self.activations1 = nn.ModuleList(Snake(channels) for _ in dilations)
        self.activations2 = nn.ModuleList(Snake(channels) for _ in dilations)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, T] -> [B, C, T]."""
        if self.faster is not None and not torch.compiler.is_exporting():
            return self.faster(self, x)
        layers = zip(self.activations1, self.convs1, self.activations2, self.convs2, strict=True)
        for activation1, conv1, activation2, conv2 in layers:
            x = x + conv2(activation2(conv1(activation1(x))))
        return x


class F0Predictor(nn.Module):
    """Fundamental frequency of each mel frame, in Hz."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for index in range(5):
            layers += [
                _normed(nn.Conv1d(in_channels if index == 0 else channels, channels, 3, padding=1)),
                nn.ELU(),
            ]
        self.condnet = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, 1)

    def forward(self, mel: Tensor) -> Tensor:
        """[B, n_mels, frames] -> [B, frames]."""
        return self.classifier(self.condnet(mel).transpose(1, 2)).squeeze(-1).abs()  # type: ignore[no-any-return]


class HarmonicSource(nn.Module):
    """Sines at the fundamental and its harmonics plus noise, merged into one excitation."""

    def __init__(self, config: HiFTConfig) -> None:
        super().__init__()
        self.config = config
        self.l_linear = nn.Linear(config.nb_harmonics + 1, 1)

    def phases(self, f0: Tensor) -> Tensor:
        """f0 [B, frames] in Hz -> turns of fundamental and harmonics at the centre of each frame: float64 [B,
        frames, harmonics + 1].

        A cumulative sum over the frames, in float64, because it reaches thousands of turns. The released code
        also draws a random initial phase, which never reaches its output.
        """
        config = self.config
        multiples = torch.arange(1, config.nb_harmonics + 2, device=f0.device, dtype=torch.float64)
        turns = (f0.double().unsqueeze(-1) * multiples / config.sampling_rate) % 1.0  # per sample
        return turns.cumsum(dim=1) * config.hop

    def forward(self, f0: Tensor, noise: Tensor, phases: Tensor | None = None) -> Tensor:
        """f0 [B, frames] in Hz, noise [B, samples, harmonics + 1] (standard normal) -> excitation [B,
        samples]. `phases` are those at the centres of the frames, by default `phases(f0)`; between them they
        are linear."""
        config = self.config
        phase = (self.phases(f0) if phases is None else phases).transpose(1, 2)
        sines = F.interpolate(phase, scale_factor=float(config.hop), mode="linear").transpose(1, 2)
        # In place: in float64 for many replies this is the largest tensor of the network.
        sines = config.nsf_alpha * sines.remainder_(1.0).mul_(2.0 * math.pi).sin_().to(noise.dtype)
        voiced = (f0 > config.nsf_voiced_threshold).to(noise.dtype)
        voiced = voiced.repeat_interleave(config.hop, dim=1).unsqueeze(-1)  # [B, samples, 1]
        amplitude = voiced * config.nsf_sigma + (1.0 - voiced) * config.nsf_alpha / 3.0
        waves = sines * voiced + amplitude * noise
        return torch.tanh(self.l_linear(waves)).squeeze(-1)


class HiFT(nn.Module):
    """Mel to wave. `vocode` is the one-shot call; `source` and `decode` are its two halves."""

    def __init__(self, config: HiFTConfig) -> None:
        super().__init__()
        self.config = config
        base, bins = config.base_channels, config.n_fft + 2
        self.m_source = HarmonicSource(config)
        self.conv_pre = _normed(nn.Conv1d(config.in_channels, base, 7, padding=3))
        self.ups = nn.ModuleList()
        self.source_downs = nn.ModuleList()
        self.source_resblocks = nn.ModuleList()
        self.resblocks = nn.ModuleList()
        width = base
        for index, (rate, kernel) in enumerate(
            zip(config.upsample_rates, config.upsample_kernel_sizes, strict=True)
        ):
            upsample = nn.ConvTranspose1d(width, width // 2, kernel, rate, padding=(kernel - rate) // 2)
            self.ups.append(_normed(upsample))
            width //= 2
            down = prod(config.upsample_rates[index + 1 :])
            self.source_downs.append(
                nn.Conv1d(bins, width, 1)
                if down == 1
                else nn.Conv1d(bins, width, 2 * down, down, padding=down // 2)
            )
            self.source_resblocks.append(
                ResidualBlock(
                    width,
                    config.source_resblock_kernel_sizes[index],
                    config.source_resblock_dilation_sizes[index],
                )
            )
            self.resblocks.extend(
                ResidualBlock(width, size, dilations)
                for size, dilations in zip(
                    config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True
                )
            )
        self.conv_post = _normed(nn.Conv1d(width, bins, 7, padding=3))
        self.f0_predictor = F0Predictor(config.in_channels, config.f0_channels)
        self.register_load_state_dict_pre_hook(_accept_other_names)

    def fold(self) -> HiFT:
        """Replace weight normalization by plain weights (inference only). Returns self."""
        for module in self.modules():
            if parametrize.is_parametrized(module, "weight"):
                parametrize.remove_parametrizations(module, "weight")
        return self

    def lower(self, dtype: torch.dtype) -> HiFT:
        """Cast all weights to a dtype except those of the excitation, whose errors accumulate over time.
        Returns self."""
        for name, child in self.named_children():
            if name not in {"f0_predictor", "m_source"}:
                child.to(dtype)
        return self

    def source(self, mel: Tensor, noise: Tensor) -> Tensor:
        """Excitation [B, samples] of mel [B, n_mels, frames]; noise [B, samples, harmonics + 1], both
        float32."""
        return self.m_source(self.f0_predictor(mel), noise)  # type: ignore[no-any-return]

    def continued_source(
        self, mel: Tensor, noise: Tensor, frame: int, phase: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Like `source`, with the phases at the centre of the last frame, in turns (float64
        [B, harmonics + 1]); `phase` are the phases to continue from at the centre of `frame`, or [B, 0]."""
        f0 = self.f0_predictor(mel)
        phases = self.m_source.phases(f0)
        if phase.shape[1]:
            phases = phases + (phase - phases[:, frame])[:, None]
        return self.m_source(f0, noise, phases), phases[:, -1] % 1.0

    def draw_noise(self, frames: int, generator: torch.Generator | None = None) -> Tensor:
        """Noise for `frames` mel frames: float32 [1, samples, harmonics + 1], on the generator's device."""
        shape = (1, frames * self.config.hop, self.config.nb_harmonics + 1)
        return torch.randn(shape, generator=generator, device=None if generator is None else generator.device)

    def decode(self, mel: Tensor, source: Tensor) -> Tensor:
        """Wave [B, samples] from mel [B, n_mels, frames] and its excitation [B, samples]."""
        return self.wave(self.spectrum(mel, self.excitation(source).to(mel.dtype)))

    def excitation(self, source: Tensor) -> Tensor:
        """The excitation [B, samples] as real and imaginary parts: float32 [B, n_fft + 2, samples / hop_len +
        1]."""
        config = self.config
        window = torch.hann_window(config.n_fft, device=source.device, dtype=torch.float32)
        spectrum = torch.stft(
            source.float(),
            config.n_fft,
            config.hop_len,
            config.n_fft,
            window,
            center=True,
            return_complex=True,
        )
        return torch.cat((spectrum.real, spectrum.imag), dim=1)

    def spectrum(self, mel: Tensor, excitation: Tensor) -> Tensor:
        """Log magnitudes, and the arguments of the sines that are the phases: [B, n_fft + 2, samples /
        hop_len + 1]. Runs all layers with weights except those of the excitation."""
        config = self.config
        x = self.conv_pre(mel)
        kinds = len(config.resblock_kernel_sizes)
        for index, upsample in enumerate(self.ups):
            x = upsample(F.leaky_relu(x, config.lrelu_slope))
            if index == len(self.ups) - 1:
                x = F.pad(x, (1, 0), mode="reflect")
            x = x + self.source_resblocks[index](self.source_downs[index](excitation))
            blocks = [self.resblocks[index * kinds + kind](x) for kind in range(kinds)]
            x = torch.stack(blocks).sum(dim=0) / kinds
        return self.conv_post(F.leaky_relu(x))  # type: ignore[no-any-return]

    def wave(self, x: Tensor) -> Tensor:
        """Wave [B, samples] from the result of `spectrum`."""
        config, x = self.config, x.float()
        window = torch.hann_window(config.n_fft, device=x.device, dtype=torch.float32)
        bins = config.n_fft // 2 + 1
        magnitude = x[:, :bins].exp().clamp(max=100.0)
        spectrum = torch.polar(magnitude, x[:, bins:].sin())
        wave = inverse_stft(spectrum, window, config.hop_len)
        return wave.clamp(-config.audio_limit, config.audio_limit)

    def forward(self, mel: Tensor, noise: Tensor | None = None) -> Tensor:
        """Wave [B, samples] of mel [B, n_mels, frames]; noise as for `source`, drawn if None."""
        if noise is None:
            noise = self.draw_noise(mel.shape[2]).to(mel.device)
        wide, low = next(self.m_source.parameters()).dtype, next(self.conv_post.parameters()).dtype
        return self.decode(mel.to(low), self.source(mel.to(wide), noise.to(wide)))


def inverse_stft(spectrum: Tensor, window: Tensor, hop: int) -> Tensor:
    """`torch.istft` of a centred spectrum [B, n_fft / 2 + 1, frames]: float32 [B, (frames - 1) * hop].

    `torch.istft` checks on the host whether the window sums to zero anywhere, which a captured graph cannot
    do. Overlap-add of windowed frames, divided by the sum of the squared windows (Griffin and Lim, 1984).
    """
    n_fft, frames = len(window), spectrum.shape[2]
    segments = torch.fft.irfft(spectrum, n_fft, dim=1) * window[:, None]  # [B, n_fft, frames]
    squares = window.square()[None, :, None].expand(1, -1, frames)
    size = (1, (frames - 1) * hop + n_fft)
    wave, weight = (
        F.fold(part, size, (1, n_fft), stride=(1, hop)).flatten(1) for part in (segments, squares)
    )
    half = n_fft // 2
    return wave[:, half:-half] / weight[:, half:-half]


def _accept_other_names(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Convert weight-norm names to those of the module: weight_g / weight_v, original0 / original1, or
    folded."""
    for key in list(state):
        for old, new in (("weight_g", "original0"), ("weight_v", "original1")):
            if key.startswith(prefix) and key.endswith("." + old):
                state[f"{key.removesuffix(old)}parametrizations.weight.{new}"] = state.pop(key)
    for name, child in module.named_modules():
        stem = f"{prefix}{name}."
        norm, direction = (stem + f"parametrizations.weight.original{index}" for index in (0, 1))
        plain = stem + "weight"
        if parametrize.is_parametrized(child, "weight"):
            if plain in state:
                weight = state.pop(plain)
                state[direction] = weight
                state[norm] = _norm(weight)
        elif norm in state and direction in state:
            weight = state.pop(direction)
            state[plain] = weight * (state.pop(norm) / _norm(weight))


def _norm(weight: Tensor) -> Tensor:
    """Length over all axes but the first (of a transposed convolution that is the input channels)."""
    length: Tensor = weight.flatten(1).norm(dim=1)
    return length.view(-1, *[1] * (weight.dim() - 1))
