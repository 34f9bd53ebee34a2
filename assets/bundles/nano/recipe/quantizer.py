"""The codebook in training: k-means to begin with, then moving averages.

In: hidden states [B, n, d]. Out: the same quantized, with straight-through gradient, and the commitment.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Quantizer(nn.Module):
    """Codebook with moving averages (van den Oord et al. 2017, appendix A.1).

    The entries are the encoder's `codebook` weight [codes, d], changed in place.
    """

    def __init__(self, codebook: Tensor, decay: float = 0.99) -> None:
        super().__init__()
        self.entries, self.decay = codebook, decay
        self.register_buffer("count", torch.ones(len(codebook), device=codebook.device))
        self.register_buffer("total", codebook.detach().clone())

    @torch.no_grad()
    def k_means(self, points: Tensor, rounds: int = 12) -> None:
        """Place the entries on `points` [n, d]."""
        entries = points[torch.randint(len(points), (len(self.entries),), device=points.device)].clone()
        for _ in range(rounds):
            nearest = self._nearest(points, entries)
            count = torch.bincount(nearest, minlength=len(entries)).float()
            total = torch.zeros_like(entries).index_add_(0, nearest, points)
            entries = torch.where(count[:, None] > 0, total / count.clamp_min(1)[:, None], entries)
        self.entries.copy_(entries)
        self.total.copy_(entries)
        self.count.fill_(1.0)

    @staticmethod
    def _nearest(points: Tensor, entries: Tensor) -> Tensor:
        """Index of the nearest entry: |p - e|^2 without |p|^2, a part at a time to bound the memory."""
        squares = entries.square().sum(1)
        return torch.cat([(squares - 2 * part @ entries.T).argmin(1) for part in points.split(16_384)])

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[B, n, d] -> quantized with straight-through gradient, commitment loss. The entries move."""
        points = hidden.detach().float().reshape(-1, hidden.shape[-1])
        with torch.no_grad():
            codes = self._nearest(points, self.entries)
            quantized = self.entries[codes].view_as(hidden)
            self._follow(points, codes)
        commitment = F.mse_loss(hidden.float(), quantized)
        return hidden + (quantized - hidden.float()).detach().to(hidden.dtype), commitment

    def _follow(self, points: Tensor, codes: Tensor) -> None:
        """Entries go to the mean of their points; dead ones are put on a random point."""
        count = torch.bincount(codes, minlength=len(self.entries)).float()
        total = torch.zeros_like(self.entries).index_add_(0, codes, points)
        self.count.mul_(self.decay).add_(count, alpha=1 - self.decay)
        self.total.mul_(self.decay).add_(total, alpha=1 - self.decay)
        dead = self.count < 0.05
        fresh = points[torch.randint(len(points), (len(self.entries),), device=points.device)]
        mean = self.total / self.count.clamp_min(1e-3)[:, None]
        self.entries.copy_(torch.where(dead[:, None], fresh, mean))
        self.total.copy_(torch.where(dead[:, None], fresh, self.total))
        self.count.masked_fill_(dead, 1.0)
