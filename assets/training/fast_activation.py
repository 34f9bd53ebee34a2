"""BigVGAN's anti-aliased activation for training: the same filters as fused element-wise code.

The package runs them as depth-wise convolutions, which cost most of a training step on a GPU. Written as
polyphase sums, the compiler makes two kernels of them. The edges are padded with zeros instead of the last
sample: only the first and last samples of a training segment see that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_runtime.models.bigvgan_package import Activation1d


def anti_aliased(x: Tensor, up: Tensor, down: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Up-sample by 2, x + sin(alpha x)^2 / beta, down-sample by 2: [B, C, T] -> [B, C, T].

    `up`, `down`: filters [12]; `alpha`, `beta`: logarithms [C] (BigVGAN's snakebeta).
    """
    dtype, length = x.dtype, x.shape[-1]
    x = F.pad(x.float(), (3, 3))
    even = sum(up[1 + 2 * q] * x[..., 5 - q : 5 - q + length] for q in range(6)) * 2
    odd = sum(up[2 * q] * x[..., 6 - q : 6 - q + length] for q in range(6)) * 2
    frequency, scale = alpha.exp()[:, None], 1.0 / (beta.exp()[:, None] + 1e-9)
    even = even + scale * torch.sin(even * frequency) ** 2
    odd = odd + scale * torch.sin(odd * frequency) ** 2
    even, odd = F.pad(even, (2, 3)), F.pad(odd, (3, 2))
    y = sum(down[5 + 2 * r] * even[..., r + 2 : r + 2 + length] for r in range(-2, 4))
    y = y + sum(down[6 + 2 * r] * odd[..., r + 3 : r + 3 + length] for r in range(-3, 3))
    return y.to(dtype)


class FastActivation(nn.Module):
    """Stands in for `Activation1d`, with the same parameters under the same names."""

    def __init__(self, original: Activation1d, compiled: bool) -> None:
        super().__init__()
        self.act, self.upsample, self.downsample = original.act, original.upsample, original.downsample
        self.run = _compiled() if compiled else anti_aliased

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, T] -> [B, C, T]."""
        down = self.downsample.lowpass.filter.flatten()
        return self.run(x, self.upsample.filter.flatten(), down, self.act.alpha, self.act.beta)


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., Tensor]:
    """One compiled function for all activations: each new width and length compiles it once more."""
    return torch.compile(anti_aliased, dynamic=False)


def use_fast_activations(model: nn.Module, compiled: bool) -> None:
    """Replace every activation of a BigVGAN in place."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Activation1d):
                setattr(module, name, FastActivation(child, compiled))
