"""BigVGAN for CPUs: the same function as the package's network, in half the time.

In: rows of mel. Out: rows of one sample. The network is a chain of levels, each of which maps rows to rows
and declares its receptive field, so that a stream (`cpu_bigvgan_stream`) computes every row once. The
convolutions read rows of channels without a copy (`cpu_convolution`). Holds no stream state. Runs in the
thread of its caller.

Tried without a gain: a polynomial in place of torch's sine, anti-aliasing filters as banded products, and
upsampling with three products instead of four.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine_runtime.codec.vocoder.cpu_convolution import (
    Convolution,
    DirectConvolution,
    convolution,
    image,
    rows_of,
    without,
)
from engine_runtime.models.bigvgan import FILTER_KERNEL
from engine_runtime.models.bigvgan_package import Activation1d, AMPBlock1, AMPBlock2, BigVGAN

ACTIVATION_REACH = FILTER_KERNEL // 2 - 1
"""Rows on either side that an anti-aliased activation depends on."""
LEAST_FREQUENCY = 1e-6
"""Smallest alpha of a snake; below it the snake is the identity in float32."""

Run = Callable[[Tensor, bool, bool], Tensor]
"""(rows [T, in], whether they start and end with the signal) -> rows [T', out]."""


@dataclass(frozen=True, slots=True)
class UpsamplingLevel:
    """A level of the network. It maps T rows inside a signal to rate * (T - context) rows."""

    run: Run
    rate: int
    """Output rows per input row."""
    context: int
    """Past rows that the next output rows depend on."""
    delay: int
    """Delayed output rows, which appear only at the end of the signal."""


class CpuBigVGAN:
    """The network with folded weights. `dtype` is that of the factors of the dense convolutions; everything
    else, including sums, is float32.
    """

    def __init__(self, network: BigVGAN, dtype: torch.dtype = torch.float32) -> None:
        kinds, blocks = network.num_kernels, [_Block(block, dtype) for block in network.resblocks]
        first = convolution(network.conv_pre.weight, network.conv_pre.bias, 1, dtype)
        levels = [_level(first, first.reach)]
        for index, ups in enumerate(network.ups):
            # the mean over the blocks of a stage: the division is folded into the next layer
            levels.append(_Upsampling(ups[0], 1 / kinds if index else 1.0, dtype).level)
            stage = _Stage(blocks[index * kinds : (index + 1) * kinds])
            levels.append(_level(stage, stage.reach))
        last = _Last(network, 1 / kinds)
        self.levels = (*levels, _level(last, last.reach))
        self.n_mels: int = network.h.num_mels
        self.hop = prod(network.h.upsample_rates)


def _level(run: Run, reach: int) -> UpsamplingLevel:
    """A level of rate 1; each row depends on `reach` rows on either side."""
    return UpsamplingLevel(run, rate=1, context=2 * reach, delay=reach)


class _Activation:
    """An anti-aliased activation: upsample by two, snake, downsample by two. The frequency of the sine and a
    factor of the input are folded into the filters."""

    def __init__(self, module: Activation1d, factor: float = 1.0) -> None:
        act = module.act
        frequency, magnitude = act.alpha.detach(), getattr(act, "beta", act.alpha).detach()
        if act.alpha_logscale:
            frequency, magnitude = frequency.exp(), magnitude.exp()
        frequency = torch.where(frequency.abs() < LEAST_FREQUENCY, LEAST_FREQUENCY, frequency)
        self._channels = frequency.shape[0]
        each = frequency[:, None, None, None]
        up = module.up_ratio * module.upsample.filter.detach()[:, :, None]
        self._up = (each * (factor * up)).contiguous()  # [C, 1, 1, taps]
        self._down = (module.downsample.lowpass.filter.detach()[:, :, None] / each).contiguous()
        self._gain = frequency / (magnitude + 1e-9)

    def __call__(self, rows: Tensor, at_start: bool, at_end: bool) -> Tensor:
        """[T, C] -> [T - 2 reach, C], T at an end of the signal being `ACTIVATION_REACH` more."""
        reach = ACTIVATION_REACH
        if at_start or at_end:
            first, last = rows[:1].expand(reach * at_start, -1), rows[-1:].expand(reach * at_end, -1)
            rows = torch.cat((first, rows, last))
        theta = rows_of(
            F.conv_transpose2d(
                image(rows), self._up, stride=(1, 2), padding=(0, 2 * reach), groups=self._channels
            )
        )
        if at_start:
            theta[:reach] = theta[reach]
        if at_end:
            theta[-reach:] = theta[-reach - 1]
        theta.addcmul_(theta.sin().square_(), self._gain)
        return rows_of(F.conv2d(image(theta), self._down, stride=(1, 2), groups=self._channels))


class _Block:
    """An AMP block of either kind: pairs of activation and convolution, with a residual connection after one
    or two."""

    def __init__(self, block: AMPBlock1 | AMPBlock2, dtype: torch.dtype) -> None:
        if isinstance(block, AMPBlock1):
            modules = [conv for pair in zip(block.convs1, block.convs2, strict=True) for conv in pair]
            self._pairs_per_sum = 2
        else:
            modules, self._pairs_per_sum = list(block.convs), 1
        convs: list[Convolution] = [
            convolution(conv.weight, conv.bias, conv.dilation[0], dtype) for conv in modules
        ]
        activations = [_Activation(module) for module in block.activations]
        self._pairs = list(zip(activations, convs, strict=True))
        self.reach = sum(ACTIVATION_REACH + conv.reach for conv in convs)

    def __call__(self, rows: Tensor, at_start: bool, at_end: bool) -> Tensor:
        """[T, C] -> [T - 2 reach, C], T at an end of the signal being `reach` more."""
        for first in range(0, len(self._pairs), self._pairs_per_sum):
            h, reach = rows, 0
            for activation, conv in self._pairs[first : first + self._pairs_per_sum]:
                h = conv(activation(h, at_start, at_end), at_start, at_end)
                reach += ACTIVATION_REACH + conv.reach
            rows = h.add_(without(rows, 0 if at_start else reach, 0 if at_end else reach))
        return rows


class _Stage:
    """The sum of parallel blocks."""

    def __init__(self, blocks: list[_Block]) -> None:
        self._blocks, self.reach = blocks, max(block.reach for block in blocks)

    def __call__(self, rows: Tensor, at_start: bool, at_end: bool) -> Tensor:
        """[T, C] -> [T - 2 reach, C], T at an end of the signal being `reach` more."""
        parts = []
        for block in self._blocks:
            more = self.reach - block.reach
            own = without(rows, 0 if at_start else more, 0 if at_end else more)
            parts.append(block(own, at_start, at_end))
        total, *others = parts
        for other in others:
            total += other
        return total


class _Upsampling:
    """A transposed convolution as one product: a window of rows yields `rate` concatenated rows."""

    def __init__(self, conv: nn.ConvTranspose1d, factor: float, dtype: torch.dtype) -> None:
        weight = conv.weight.detach() * factor  # [in, out, kernel]
        self._rate, self._delay = conv.stride[0], int(conv.padding[0])
        self._window = -(-weight.shape[2] // self._rate)
        weight = F.pad(weight, (0, self._window * self._rate - weight.shape[2]))
        # the first taps apply to the last row of the window
        phases = weight.unflatten(2, (self._window, self._rate)).flip(2).permute(3, 1, 2, 0)
        self._channels = phases.shape[1]
        self._weight = phases.reshape(self._rate * self._channels, -1).to(dtype)
        assert conv.bias is not None
        self._bias = conv.bias.detach().repeat(self._rate).to(dtype)
        self.level = UpsamplingLevel(self._run, self._rate, self._window - 1, self._delay)

    def _run(self, rows: Tensor, at_start: bool, at_end: bool) -> Tensor:
        behind = -(-self._delay // self._rate) * at_end
        if at_start or at_end:
            rows = F.pad(rows, (0, 0, (self._window - 1) * at_start, behind))
        length, channels = rows.shape
        rows = rows.to(self._weight.dtype)
        windows = rows.as_strided((length - self._window + 1, self._window * channels), (channels, 1))
        result = F.linear(windows, self._weight, self._bias).float().view(-1, self._channels)
        delay = self._delay
        return without(result, delay * at_start, (behind * self._rate - delay) * at_end)


class _Last:
    """The last layers: rows of the last stage to samples."""

    def __init__(self, network: BigVGAN, factor: float) -> None:
        self._activation = _Activation(network.activation_post, factor)
        self._conv = DirectConvolution(network.conv_post.weight, network.conv_post.bias)
        self._is_tanh = network.use_tanh_at_final
        self.reach = ACTIVATION_REACH + self._conv.reach

    def __call__(self, rows: Tensor, at_start: bool, at_end: bool) -> Tensor:
        """[T, C] -> [T - 2 reach, 1], T at an end of the signal being `reach` more."""
        pcm = self._conv(self._activation(rows, at_start, at_end), at_start, at_end)
        return pcm.tanh_() if self._is_tanh else pcm.clamp_(-1.0, 1.0)
