"""BigVGAN on windows of the mel: seamless chunks without state inside the network.

In: mel chunks. Out: the samples of every frame whose right context is there. A window is cut down after
every stage to what the wanted samples still depend on (`stage_intervals`), so that the expensive late
stages work on the new frames alone. With the structural context the result is that of one call over the
whole mel; at the true start and end of the signal nothing is padded. Runs in the thread of its caller.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from bigvgan.bigvgan import BigVGAN
from torch import Tensor

from engine_runtime.models.bigvgan import stage_intervals
from engine_runtime.types import Mel, Pcm


class BigVGANWindows:
    """The network, run on a window for a part of its frames. No state of a stream."""

    def __init__(self, network: BigVGAN) -> None:
        self._network, self._config = network, dict(network.h)
        self._rates: list[int] = list(network.h.upsample_rates)
        self.hop = int(np.prod(self._rates))

    @torch.inference_mode()
    def __call__(self, mel: Tensor, first: int, end: int) -> Tensor:
        """Samples [(end - first) * hop] of the frames [first, end) of the window mel [1, n_mels, frames]."""
        network, kinds = self._network, self._network.num_kernels
        wanted = iter(stage_intervals(self._config, first, end))
        x, offset = _cut(mel, 0, next(wanted))
        x = network.conv_pre(x)
        for stage, rate in enumerate(self._rates):
            x, offset = _cut(x, offset, next(wanted))
            x, offset = _cut(network.ups[stage][0](x), offset * rate, next(wanted))
            total = network.resblocks[stage * kinds](x)
            for block in network.resblocks[stage * kinds + 1 : (stage + 1) * kinds]:
                total += block(x)
            x = total / kinds
        x, offset = _cut(x, offset, next(wanted))
        x = network.conv_post(network.activation_post(x))
        x = torch.tanh(x) if network.use_tanh_at_final else x.clamp(-1.0, 1.0)
        return x[0, 0, first * self.hop - offset : end * self.hop - offset]


def _cut(x: Tensor, offset: int, wanted: tuple[int, int]) -> tuple[Tensor, int]:
    """x [..., T] starting at `offset`, cut to the wanted positions as far as they exist, and its new
    offset."""
    first, last = max(wanted[0], offset), min(wanted[1], offset + x.shape[-1] - 1)
    return x[..., first - offset : last + 1 - offset], first


class BigVGANStream:
    """One reply. Keeps the frames that are context of what comes next."""

    def __init__(
        self,
        windows: BigVGANWindows,
        n_mels: int,
        context: tuple[int, int],
        check: Callable[[Mel], None],
        like: Tensor,
    ) -> None:
        self._windows, self._check = windows, check
        self._left, self._right = context
        self._empty = like.new_zeros((1, n_mels, 0))
        self.reset()

    def reset(self) -> None:
        """Forget everything: the next frame is the first of a signal."""
        self._frames = self._empty
        self._done = 0  # frames of `_frames` whose samples are out

    def push(self, mel: Mel) -> Pcm:
        """Add frames [n_mels, frames]; returns the samples that are final now, maybe none."""
        self._check(mel)
        self._frames = torch.cat((self._frames, torch.as_tensor(mel).to(self._empty)[None]), dim=2)
        return self._emit(self._frames.shape[2] - self._right)

    def finish(self) -> Pcm:
        """The samples that were held back for their right context; the stream is as new afterwards."""
        pcm = self._emit(self._frames.shape[2])
        self.reset()
        return pcm

    def _emit(self, end: int) -> Pcm:
        if end <= self._done:
            return np.zeros(0, dtype=np.float32)
        samples = self._windows(self._frames, self._done, end)
        drop = max(end - self._left, 0)
        self._frames, self._done = self._frames[:, :, drop:], end - drop
        return samples.float().cpu().numpy()
