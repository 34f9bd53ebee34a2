"""Attention over external keys and values, as used in the exported graphs.

In: past keys and values, a mask, and the new ones. Out: the attention output, and the new keys and values for
the caller's cache. Scores are concatenated instead of caches, so that the past is read once and never copied
within an engine.
"""

from __future__ import annotations

import torch
from torch import Tensor


def attend(query: Tensor, past: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
    """query [B, H, n, d] over the keys and values `past` [B, H, P, d] and `new` [B, H, n, d]; mask [n, P +
    n] is added to the scores. Returns [B, H, n, d]."""
    length = past[0].shape[2]
    scores = torch.cat((query @ past[0].transpose(2, 3), query @ new[0].transpose(2, 3)), dim=3)
    seen = torch.softmax(scores * query.shape[3] ** -0.5 + mask, dim=3)
    return seen[..., :length] @ past[1] + seen[..., length:] @ new[1]


class GivenPast:
    """Keys and values [layers, 2, B, H, P, d] of all layers; implements `Attending` and collects the new
    ones."""

    def __init__(self, past: Tensor, mask: Tensor) -> None:
        self._past, self._mask = past, mask
        self._new: list[Tensor] = []

    def attend(self, layer: int, query: Tensor, kv: Tensor) -> Tensor:
        """See `Attending`; layers are called in order."""
        self._new.append(kv)
        past = self._past[layer]
        return attend(query, (past[0], past[1]), (kv[0], kv[1]), self._mask)

    def collected(self) -> Tensor:
        """The new keys and values [layers, 2, B, H, n, d]."""
        return torch.stack(self._new)
