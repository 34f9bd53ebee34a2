"""Sampler: from the logits of one channel to an id.

In: logits [vocab] of one step. Out: one id. Order of the steps: float32, banned ids, repetition penalty over
every id of this channel so far (prompt included), then either argmax, or temperature, top-k, top-p and one id
by one uniform draw. Each channel has its own Sampler. Only the candidates that pass top-k or top-p are
sorted, not the full vocabulary. Counterpart on a device: executors/cuda/sampler.py. Engine thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from engine_runtime.types import SamplingParams

_TOKENS = 64
"""`highest` views the scores as this many tokens and compares the column maxima first."""
_FIRST_CANDIDATES, _GROWTH = 64, 16
"""Number of top scores that top-p without top-k examines first, and the growth factor of each retry."""


class Sampler:
    """Scores and sampling of one channel of one reply; keeps the ids subject to the repetition penalty."""

    def __init__(
        self, params: SamplingParams, vocab: int, history: Iterable[int], device: torch.device | str = "cpu"
    ) -> None:
        self._params = params
        self._penalized = params.repetition_penalty != 1.0
        self._seen = torch.zeros(vocab, dtype=torch.bool, device=device)
        self._seen_ids = torch.zeros(0, dtype=torch.int64, device=device)
        self._noted: list[int] = []
        """Ids in `seen` that are not yet in `_seen_ids`."""
        if self._penalized:
            self._seen_ids = torch.tensor(sorted(set(history)), dtype=torch.int64, device=device)
            self._seen[self._seen_ids] = True

    @property
    def seen(self) -> Tensor:
        """Ids subject to the repetition penalty so far. [vocab] bool"""
        return self._seen

    def note(self, token_id: int) -> None:
        """Add the id that was written to the token."""
        if self._penalized:
            self._seen[token_id] = True
            self._noted.append(token_id)

    def scores(self, logits: Tensor, forbidden: Iterable[slice | int] = ()) -> Tensor:
        """Scores [vocab] with penalty and temperature; -inf = banned. `logits` is not changed."""
        params = self._params
        scores = logits.float().clone()
        for ids in forbidden:
            scores[ids] = -torch.inf
        if self._penalized:
            # An executor on a device may return logits in host memory.
            self._seen_ids = self._seen_ids.to(scores.device)
            if self._noted:
                noted = torch.tensor(self._noted, dtype=torch.int64, device=scores.device)
                self._seen_ids, self._noted = torch.cat((self._seen_ids, noted)), []
            seen, penalty = scores[self._seen_ids], params.repetition_penalty
            scores[self._seen_ids] = torch.where(seen < 0, seen * penalty, seen / penalty)
        if params.do_sample:
            scores /= params.temperature
        return scores

    def sample(self, scores: Tensor, draw: float) -> int:
        """Argmax, or the candidate at which the cumulative probability in vocabulary order passes `draw` in
        [0, 1)."""
        if not self._params.do_sample:
            return int(scores.argmax())
        ids = candidates(scores, self._params.top_k, self._params.top_p)
        cumulative = scores[ids].double().softmax(-1).cumsum(-1)
        # NOTE: rounding may leave the last sum slightly below 1; a larger uniform sample selects the last
        # candidate.
        return int(ids[min(int((cumulative <= draw).sum()), len(ids) - 1)])


def candidates(scores: Tensor, k: int, p: float) -> Tensor:
    """Ids that pass top-k (0: all) and then top-p (1: all), ascending. int64 [n]

    Every score not below the k-th highest passes top-k, so ties may yield more than k. Of these, a score
    passes top-p if the probabilities of the higher scores sum to less than p; of equal scores the lower id
    ranks first.
    """
    most = scores.numel()
    if 0 < k < most or p >= 1.0:
        ids = highest(scores, k if 0 < k < most else most)
        return ids if p >= 1.0 else _most_likely(ids, scores[ids], p)
    mass, count = (scores - scores.max()).exp_().sum(), _FIRST_CANDIDATES
    while True:  # until some candidate fails, and with it everything below it
        ids = highest(scores, count)
        likely = _most_likely(ids, scores[ids], p, mass)
        if len(likely) < len(ids) or count >= most:
            return likely
        count *= _GROWTH


def highest(scores: Tensor, k: int) -> Tensor:
    """Ids of every score that is not below the k-th highest and not -inf, ascending. int64 [n]"""
    columns = -(-scores.numel() // _TOKENS)
    if k > columns:
        least = scores.topk(k).values[-1] if k < scores.numel() else -torch.inf
        return ((scores >= least) & (scores > -torch.inf)).nonzero().flatten()
    table = F.pad(scores, (0, columns * _TOKENS - scores.numel()), value=-torch.inf).view(_TOKENS, columns)
    best = table.amax(0)
    # The k-th highest score is not below the k-th highest column maximum, so it lies in one of these columns.
    held = (best >= best.topk(k).values[-1]).nonzero().flatten()
    part = table[:, held]
    least = part.flatten().topk(k).values[-1]
    tokens, places = ((part >= least) & (part > -torch.inf)).nonzero(as_tuple=True)
    return tokens * columns + held[places]


def _most_likely(ids: Tensor, scores: Tensor, p: float, mass: Tensor | None = None) -> Tensor:
    """The top-p ids of ids in ascending order with their scores, ascending. `mass` is the sum of exp(score -
    highest score) over all that shares count against, by default over these."""
    ordered, order = scores.sort(descending=True, stable=True)
    shares = (ordered - ordered[0]).exp_()
    shares /= shares.sum() if mass is None else mass
    return ids[order[shares.cumsum(-1) - shares < p].sort().values]


def reply_seed(seed: int, commit: int) -> int:
    """Seed of the `commit`-th reply of a conversation, independent of those of other commits and seeds."""
    digest = hashlib.blake2b(f"{seed} {commit}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def draws(params: SamplingParams) -> Tensor:
    """Uniform samples of a reply, [max_new, 2 (text, audio)] float64; both are consumed at every step."""
    if params.seed is None:
        raise ValueError("sampling a reply requires a seed")
    generator = torch.Generator().manual_seed(params.seed)
    return torch.rand((max(params.max_new, 1), 2), generator=generator, dtype=torch.float64)
