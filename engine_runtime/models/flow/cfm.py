"""Conditional flow matching: Euler steps along the estimator's velocity, and the training loss.

Stage: token2mel. In: encoder output, speaker, prompt frames. Out: mel. The noise of an absolute frame is
fixed (seed 0), so that a frame does not depend on the chunk sizes. Formulas: Lipman et al., "Flow Matching
for Generative Modeling" (optimal transport path); cosine time and guidance as in CosyVoice 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine_runtime.errors import ContextLengthError
from engine_runtime.models.flow.config import FlowConfig
from engine_runtime.models.flow.estimator import CausalEstimator
from engine_runtime.options import FlowSchedule


@lru_cache(maxsize=4)
def fixed_noise(n_mels: int, frames: int) -> Tensor:
    """The fixed noise: float32 [n_mels, frames] on the CPU, seed 0."""
    return torch.randn((1, n_mels, frames), generator=torch.Generator().manual_seed(0))[0]


def check_frames(frames: int, config: FlowConfig) -> None:
    """Raise ContextLengthError if the noise buffer has fewer frames."""
    if frames > config.max_frames:
        raise ContextLengthError(
            "speech of {frames} mel frames does not fit the flow's {max_frames}; use a shorter voice "
            "prompt or a shorter reply",
            frames=frames,
            max_frames=config.max_frames,
        )


def time_span(steps: int, schedule: FlowSchedule = "cosine") -> list[tuple[float, float]]:
    """(t, dt) of each Euler step at u = 0, 1/steps, ... 1.

    "cosine": t = 1 - cos(pi u / 2), upstream's, and the distribution of t in training. "uniform": t = u.
    "quadratic": t = u^2, dense near the noise like the cosine, more uniform towards the end.
    """
    points = [_TIME[schedule](index / steps) for index in range(steps + 1)]
    return [(start, end - start) for start, end in pairwise(points)]


_TIME: dict[FlowSchedule, Callable[[float], float]] = {
    "cosine": lambda u: 1.0 - math.cos(0.5 * math.pi * u),
    "uniform": lambda u: u,
    "quadratic": lambda u: u * u,
}


class CausalCFM(nn.Module):
    """Samples mels with the estimator, and computes its loss."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        self.estimator = CausalEstimator(config)

    def noise(self, start: int, frames: int) -> Tensor:
        """Noise of the absolute frames [start, start + frames): float32 [n_mels, frames] on the CPU."""
        check_frames(start + frames, self.config)
        return fixed_noise(self.config.n_mels, self.config.max_frames)[:, start : start + frames]

    def sample(
        self,
        mu: Tensor,
        spks: Tensor,
        cond: Tensor,
        n_steps: int,
        cfg_rate: float,
        streaming: bool = True,
        schedule: FlowSchedule = "cosine",
    ) -> Tensor:
        """Mel [B, n_mels, T] from mu and cond [B, n_mels, T] and spks [B, n_mels].

        With guidance the unconditional batch (mu, spks, cond zero) runs in the same batch.
        """
        batch = mu.shape[0]
        x = self.noise(0, mu.shape[2]).to(mu).expand_as(mu)
        if cfg_rate > 0:
            mu, spks, cond = (torch.cat((part, torch.zeros_like(part))) for part in (mu, spks, cond))
        mask = torch.ones_like(mu[:, :1])
        for t, dt in time_span(n_steps, schedule):
            times = torch.full((mu.shape[0],), t, device=mu.device)
            if cfg_rate > 0:
                both = self.estimator(torch.cat((x, x)), mask, mu, times, spks, cond, streaming)
                velocity = (1.0 + cfg_rate) * both[:batch] - cfg_rate * both[batch:]
            else:
                velocity = self.estimator(x, mask, mu, times, spks, cond, streaming)
            x = x + dt * velocity
        return x

    def loss(
        self, mel: Tensor, mask: Tensor, mu: Tensor, spks: Tensor, cond: Tensor, streaming: bool
    ) -> Tensor:
        """Mean squared error of the velocity at a random time, over real frames. Scalar.

        mel (target), mu and cond [B, n_mels, T]; mask [B, 1, T]; spks [B, n_mels].
        """
        batch, config = mel.shape[0], self.config
        t = 1.0 - torch.cos(0.5 * math.pi * torch.rand((batch, 1, 1), device=mel.device))
        noise = torch.randn_like(mel)
        x = (1.0 - (1.0 - config.sigma_min) * t) * noise + t * mel
        target = mel - (1.0 - config.sigma_min) * noise
        keep = (torch.rand((batch, 1, 1), device=mel.device) > config.train_cfg_rate).to(mu.dtype)
        velocity = self.estimator(x, mask, mu * keep, t.flatten(), spks * keep[:, 0], cond * keep, streaming)
        error = F.mse_loss(velocity.float() * mask, target * mask, reduction="sum")
        return error / (mask.sum() * mel.shape[1])
