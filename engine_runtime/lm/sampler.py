"""Sampler: from the logits of one channel to an id.

In: logits [vocab] of one step. Out: one id. Order of the steps: float32, ids that are forbidden, repetition
penalty over every id of this channel so far (prompt included), then either argmax, or temperature, top-k,
top-p and a pick by one uniform draw. Both channels are treated alike, each with its own Sampler. Its twin on
a device is cuda/picking.py. Engine thread.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from engine_runtime.types import SamplingParams


class Sampler:
    """Scores and picks of one channel of one reply; remembers the ids that the repetition penalty
    concerns."""

    def __init__(
        self, params: SamplingParams, vocab: int, history: Iterable[int], device: torch.device | str = "cpu"
    ) -> None:
        self._params = params
        self._penalised = params.repetition_penalty != 1.0
        self._seen = torch.zeros(vocab, dtype=torch.bool, device=device)
        if self._penalised:
            self._seen[torch.tensor(sorted(set(history)), dtype=torch.int64, device=device)] = True

    @property
    def seen(self) -> Tensor:
        """Ids that the repetition penalty concerns so far. [vocab] bool"""
        return self._seen

    def note(self, token_id: int) -> None:
        """Add the id that went into the row."""
        if self._penalised:
            self._seen[token_id] = True

    def scores(self, logits: Tensor, forbidden: Iterable[slice | int] = ()) -> Tensor:
        """Processed scores [vocab]; -inf = can not be picked. `logits` is not changed."""
        params = self._params
        scores = logits.float().clone()
        for ids in forbidden:
            scores[ids] = -torch.inf
        if self._penalised:
            penalty = params.repetition_penalty
            penalised = torch.where(scores < 0, scores * penalty, scores / penalty)
            scores = torch.where(self._seen, penalised, scores)
        if params.do_sample:
            scores = keep_top_p(keep_top_k(scores / params.temperature, params.top_k), params.top_p)
        return scores

    def pick(self, scores: Tensor, draw: float) -> int:
        """Argmax, or the id at which the cumulative probability in vocabulary order passes `draw` in [0,
        1)."""
        if not self._params.do_sample:
            return int(scores.argmax())
        cumulative = scores.double().softmax(-1).cumsum(-1)
        # NOTE: rounding may leave the last sum a hair below 1; a draw above it means the last id that can be
        # picked.
        last = int(torch.nonzero(scores > -torch.inf)[-1])
        return min(int((cumulative <= draw).sum()), last)


def keep_top_k(scores: Tensor, k: int) -> Tensor:
    """Keep every score that is not below the k-th highest; 0 keeps all."""
    if k <= 0 or k >= scores.numel():
        return scores
    kth = scores.topk(k).values[-1]
    return scores.masked_fill(scores < kth, -torch.inf)


def keep_top_p(scores: Tensor, p: float) -> Tensor:
    """Keep the highest scores whose probabilities before them sum to less than p."""
    if p >= 1.0:
        return scores
    ordered, order = scores.sort(descending=True, stable=True)
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    drop = torch.zeros_like(scores, dtype=torch.bool)
    drop[order] = before >= p
    return scores.masked_fill(drop, -torch.inf)


def draws(params: SamplingParams) -> Tensor:
    """The uniform draws of a reply, [max_new, 2 (text, audio)] float64; both are consumed at every step."""
    generator = torch.Generator().manual_seed(params.seed)
    return torch.rand((max(params.max_new, 1), 2), generator=generator, dtype=torch.float64)
