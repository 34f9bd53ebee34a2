"""Streaming BigVGAN on windows of the mel: seamless chunks without state in the network.

In: mel chunks. Out: the samples of every frame whose right context has arrived. After every stage a window is
cropped to what the requested samples depend on (`stage_intervals`), so that the expensive late stages run on
the new frames only. With the full receptive field the result equals one call over the complete mel; no
context is invented beyond the true start and end of the signal. Runs in the thread of its caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from engine_runtime.codec.vocoder.stream import GraphedFrames, VocoderStream
from engine_runtime.models.bigvgan import FILTER_KERNEL, stage_intervals
from engine_runtime.models.bigvgan_package import Activation1d, AMPBlock1, AMPBlock2, BigVGAN

EDGE = 8
"""Samples of an activation affected by the edge padding of its filters at an end of the signal (6, rounded
up)."""


class _Activation:
    """An anti-aliased activation without padding copies: upsample by two, snake, downsample by two.

    The package replicates the edge samples before both filters. Here the filters use zero padding; the few
    samples that this changes are recomputed as in the package at an end of the signal, and cropped later
    elsewhere.
    """

    def __init__(self, module: Activation1d) -> None:
        self._plain = module
        act = module.act
        channels = act.alpha.shape[0]
        frequency, magnitude = act.alpha.detach(), getattr(act, "beta", act.alpha).detach()
        if act.alpha_logscale:
            frequency, magnitude = frequency.exp(), magnitude.exp()
        self._frequency, self._gain = frequency[None, :, None], 1.0 / (magnitude + 1e-9)[None, :, None]
        self._up = (module.up_ratio * module.upsample.filter).expand(channels, -1, -1).contiguous()
        self._down = module.downsample.lowpass.filter.expand(channels, -1, -1).contiguous()
        self._channels, self._pad = channels, FILTER_KERNEL // 2 - 1

    def __call__(self, x: Tensor, at_start: bool, at_end: bool) -> Tensor:
        """[1, C, T] -> [1, C, T]."""
        if x.shape[2] < 4 * EDGE:
            return self._plain(x)  # type: ignore[no-any-return]
        y = F.conv_transpose1d(x, self._up, stride=2, padding=self._pad, groups=self._channels)
        y = torch.addcmul(y, (y * self._frequency).sin_().square_(), self._gain)
        y = F.conv1d(y, self._down, stride=2, padding=self._pad, groups=self._channels)
        if at_start:
            start = self._plain(x[:, :, : 3 * EDGE])[:, :, :EDGE]
            if torch.compiler.is_exporting():  # an exported graph supports no in-place assignment
                return torch.cat((start, y[:, :, EDGE:]), dim=2)
            y[:, :, :EDGE] = start
        if at_end:
            y[:, :, -EDGE:] = self._plain(x[:, :, -3 * EDGE :])[:, :, -EDGE:]
        return y


class _Block:
    """An AMP block of either kind: pairs of activation and convolution, with a residual connection after one
    or two."""

    def __init__(self, block: AMPBlock1 | AMPBlock2) -> None:
        activations = [_Activation(module) for module in block.activations]
        if isinstance(block, AMPBlock1):
            convs = [conv for pair in zip(block.convs1, block.convs2, strict=True) for conv in pair]
            self._pairs_per_sum = 2
        else:
            convs, self._pairs_per_sum = list(block.convs), 1
        self._pairs = list(zip(activations, convs, strict=True))

    def __call__(self, x: Tensor, at_start: bool, at_end: bool) -> Tensor:
        """[1, C, T] -> [1, C, T]."""
        for first in range(0, len(self._pairs), self._pairs_per_sum):
            h = x
            for activation, conv in self._pairs[first : first + self._pairs_per_sum]:
                h = conv(activation(h, at_start, at_end))
            x = h.add_(x)
        return x


class Windows(Protocol):
    """The network as a stream calls it."""

    def __call__(self, mel: Tensor, first: int, end: int, at_start: bool, at_end: bool) -> Tensor:
        """Samples [(end - first) * hop] of the frames [first, end) of the window mel [1, n_mels, frames].

        `at_start` and `at_end`: whether the window starts or ends with the signal.
        """


class BigVGANWindows:
    """The network with folded weights, run on a window for some of its frames. Holds no stream state."""

    def __init__(self, network: BigVGAN) -> None:
        self._network, self._config = network, dict(network.h)
        self._rates: list[int] = list(network.h.upsample_rates)
        kinds = network.num_kernels
        blocks = [_Block(block) for block in network.resblocks]
        self._stages = [blocks[index : index + kinds] for index in range(0, len(blocks), kinds)]
        self._last = _Activation(network.activation_post)
        self.hop = prod(self._rates)

    @torch.inference_mode()
    def __call__(self, mel: Tensor, first: int, end: int, at_start: bool, at_end: bool) -> Tensor:
        return self.run(mel, self.cuts(mel.shape[2], first, end, at_start, at_end))

    def run(self, mel: Tensor, cuts: Sequence[Cut]) -> Tensor:
        """Samples of a window that is cropped level by level."""
        network, (before, *levels, after) = self._network, cuts
        x = network.conv_pre(before.of(mel))
        for stage, (before_up, behind_up) in enumerate(zip(levels[:-1:2], levels[1:-1:2], strict=True)):
            x = behind_up.of(network.ups[stage][0](before_up.of(x)))
            total, *others = (block(x, behind_up.at_start, behind_up.at_end) for block in self._stages[stage])
            for other in others:
                total += other
            x = total / network.num_kernels
        last = levels[-1]
        x = network.conv_post(self._last(last.of(x), last.at_start, last.at_end))
        x = torch.tanh(x) if network.use_tanh_at_final else x.clamp(-1.0, 1.0)
        return after.of(x)[0, 0]

    def cuts(self, frames: int, first: int, end: int, at_start: bool, at_end: bool) -> list[Cut]:
        """The crops of a window of `frames` frames: at every level of `stage_intervals` to the part that the
        samples of the frames [first, end) depend on, limited to the window, and after the network to these
        samples."""
        mel, *levels = stage_intervals(self._config, first, end)
        # a transposed convolution makes the signal `rate` times as long
        factors = [1, *(factor for rate in self._rates for factor in (1, rate)), 1, 1]
        samples = (first * self.hop, end * self.hop - 1)
        offset, length, cuts = 0, frames, []
        for factor, (low, high) in zip(factors, (mel, *levels, samples), strict=True):
            offset, length = offset * factor, length * factor
            left, right = max(low - offset, 0), max(offset + length - 1 - high, 0)
            at_start, at_end = at_start and left == 0, at_end and right == 0
            cuts.append(Cut(left, right, at_start, at_end))
            offset, length = offset + left, length - left - right
        return cuts


@dataclass(frozen=True, slots=True)
class Cut:
    """Number of values dropped at both sides of a level's signal, and whether the rest starts or ends with
    the signal."""

    left: int
    right: int
    at_start: bool
    at_end: bool

    def of(self, x: Tensor) -> Tensor:
        """[1, C, T] -> [1, C, T - left - right]."""
        return x[:, :, self.left : x.shape[2] - self.right]


class BigVGANStream(VocoderStream):
    """The stream of one reply. Keeps the frames that are context of later ones."""

    def __init__(
        self,
        windows: Windows,
        n_mels: int,
        context: tuple[int, int],
        check: Callable[[Tensor], None],
        like: Tensor,
        calls: GraphedFrames | None = None,
    ) -> None:
        self._windows, self._check, self._calls = windows, check, calls
        self._left, self._right = context
        self._empty = like.new_zeros((1, n_mels, 0))
        self.reset()

    def reset(self) -> None:
        """Clear the state: the next frame is the first of a signal."""
        self._frames = self._empty
        self._done = 0  # frames of `_frames` whose samples were returned
        self._dropped = False  # whether `_frames` no longer starts with the signal

    @torch.inference_mode()
    def push_tensor(self, mel: Tensor) -> Tensor:
        self._check(mel)
        self._frames = torch.cat((self._frames, mel.to(self._empty)[None]), dim=2)
        return self._emit(self._frames.shape[2] - self._right, at_end=False, pushed=mel.shape[1])

    @torch.inference_mode()
    def finish_tensor(self) -> Tensor:
        pcm = self._emit(self._frames.shape[2], at_end=True, pushed=0)
        self.reset()
        return pcm

    def _emit(self, end: int, at_end: bool, pushed: int) -> Tensor:
        if end <= self._done:
            return self._empty.new_zeros(0, dtype=torch.float32)
        done, at_start, windows = self._done, not self._dropped, self._windows
        if self._calls is not None and pushed in self._calls.frames and not at_end:
            key = (windows, self._frames.shape[2], done, end, at_start)
            samples = self._calls.calls.run(
                key, lambda frames: windows(frames, done, end, at_start, False), self._frames
            )
        else:
            samples = windows(self._frames, done, end, at_start, at_end)
        # Only now: frames that are context of the next window stay, or its first samples would be computed as
        # after silence, an audible seam.
        drop = max(end - self._left, 0)
        self._frames, self._done = self._frames[:, :, drop:], end - drop
        self._dropped = self._dropped or drop > 0
        # A graph returns its own buffer, which the next packet overwrites while the copy to the host may
        # still run.
        return samples.float() if self._calls is None else samples.float().clone()
