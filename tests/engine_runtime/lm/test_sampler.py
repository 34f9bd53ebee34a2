"""The sampler, which sorts candidates only, against the plain one that sorts the complete vocabulary."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine_runtime.lm.sampler import Sampler, candidates, draws, highest, reply_seed
from engine_runtime.types import SamplingParams

VOCAB = 1000


def plain_scores(scores: Tensor, k: int, p: float) -> Tensor:
    """Scores [vocab] after top-k and top-p, by a stable sort of all of them; -inf = left out."""
    if 0 < k < scores.numel():
        scores = scores.masked_fill(scores < scores.topk(k).values[-1], -torch.inf)
    if p < 1.0:
        ordered, order = scores.sort(descending=True, stable=True)
        probabilities = ordered.softmax(-1)
        drop = torch.zeros_like(scores, dtype=torch.bool)
        drop[order] = probabilities.cumsum(-1) - probabilities >= p
        scores = scores.masked_fill(drop, -torch.inf)
    return scores


def plain_sample(scores: Tensor, draw: float) -> int:
    """The id at which the cumulative probability of processed scores passes the draw."""
    cumulative = scores.double().softmax(-1).cumsum(-1)
    last = int(torch.nonzero(scores > -torch.inf)[-1])
    return min(int((cumulative <= draw).sum()), last)


def processed(scores: Tensor, params: SamplingParams) -> Tensor:
    """Scores of a Sampler with what its candidates leave out as -inf."""
    if not params.do_sample:
        return scores
    ids = candidates(scores, params.top_k, params.top_p)
    return torch.full_like(scores, -torch.inf).index_copy(0, ids, scores[ids])


def scores_of(kind: str, vocab: int, seed: int) -> Tensor:
    """Scores [vocab] of some shape, a third of them forbidden."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(vocab, generator=generator)
    if kind == "peaked":
        scores *= 6.0
    elif kind == "ties":
        scores = (2.0 * scores).round()
    elif kind == "flat":
        scores *= 1e-3
    elif kind == "equal":
        scores.zero_()
    scores[torch.rand(vocab, generator=generator) < 1 / 3] = -torch.inf
    scores[int(torch.randint(vocab, (), generator=generator))] = 1.0
    return scores


@pytest.mark.parametrize("kind", ["normal", "peaked", "ties", "flat", "equal"])
@pytest.mark.parametrize("top_k", [0, 1, 20, 64, 300, VOCAB, 5 * VOCAB])
@pytest.mark.parametrize("top_p", [1e-9, 0.3, 0.95, 0.9999, 1.0])
def test_ids_are_those_of_the_plain_sort(kind: str, top_k: int, top_p: float) -> None:
    for seed, vocab in enumerate((VOCAB, VOCAB - 7, 64, 3)):
        scores = scores_of(kind, vocab, seed)
        want = plain_scores(scores, top_k, top_p)
        assert torch.equal(candidates(scores, top_k, top_p), (want > -torch.inf).nonzero().flatten())
        sampler = Sampler(SamplingParams(do_sample=True, top_k=top_k, top_p=top_p), vocab, [])
        for draw in (0.0, 0.1, 0.5, 0.9, 0.999999, 1.0 - 2**-53):
            assert sampler.sample(scores, draw) == plain_sample(want, draw)


def test_random_draws_of_a_large_vocabulary() -> None:
    generator = torch.Generator().manual_seed(7)
    for seed, (top_k, top_p) in enumerate([(20, 0.95), (0, 0.95), (0, 0.5), (5000, 0.8), (0, 1.0)]):
        scores = 3.0 * torch.randn(151_680, generator=torch.Generator().manual_seed(seed))
        want = plain_scores(scores, top_k, top_p)
        sampler = Sampler(SamplingParams(do_sample=True, top_k=top_k, top_p=top_p), len(scores), [])
        for draw in torch.rand(5, generator=generator, dtype=torch.float64).tolist():
            assert sampler.sample(scores, draw) == plain_sample(want, draw)


@pytest.mark.parametrize("top_k", [0, 50])
def test_the_vocabulary_is_never_sorted(top_k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits of a model are peaked: few candidates hold the mass."""
    sizes = []
    sort = Tensor.sort

    def noting(values: Tensor, *, stable: bool = False, descending: bool = False) -> tuple[Tensor, ...]:
        sizes.append(len(values))
        return sort(values, stable=stable, descending=descending)

    monkeypatch.setattr(Tensor, "sort", noting)
    scores = scores_of("peaked", 20_000, 0)
    candidates(scores, top_k, 0.9)
    assert sizes
    assert max(sizes) <= 1024


@pytest.mark.parametrize("vocab", [1, 63, 64, 65, 1000])
def test_highest_holds_ties_and_nothing_forbidden(vocab: int) -> None:
    for kind in ("normal", "ties", "equal"):
        scores = scores_of(kind, vocab, vocab)
        for k in {1, min(5, vocab), vocab}:
            least = scores.sort(descending=True).values[k - 1]
            want = ((scores >= least) & (scores > -torch.inf)).nonzero().flatten()
            assert torch.equal(highest(scores, k), want)


def test_top_k_keeps_ties_and_top_p_keeps_at_least_one() -> None:
    scores = torch.tensor([1.0, 3.0, 3.0, 2.0])
    assert candidates(scores, 1, 1.0).tolist() == [1, 2]
    assert candidates(scores, 0, 1.0).tolist() == [0, 1, 2, 3]
    assert candidates(torch.tensor([0.0, 9.0, 1.0]), 0, 0.01).tolist() == [1]
    assert candidates(torch.tensor([2.0, 2.0, -9.0]), 0, 0.9).tolist() == [0, 1]
    assert candidates(torch.tensor([2.0, 2.0, 2.0, 2.0]), 0, 0.5).tolist() == [0, 1]  # the lower ids first


def test_logits_are_not_changed_by_scoring() -> None:
    logits = torch.linspace(-1, 1, 20)
    before = logits.clone()
    Sampler(SamplingParams(repetition_penalty=1.3), 20, [19, 3]).scores(logits, [4])
    assert torch.equal(logits, before)


def test_the_penalty_concerns_each_id_once() -> None:
    sampler = Sampler(SamplingParams(repetition_penalty=2.0), 6, [1, 1, 4])
    sampler.note(2)
    sampler.note(2)
    logits = torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0, 1.0])
    assert sampler.scores(logits).tolist() == [1.0, 0.5, -2.0, -1.0, 0.5, 1.0]
    sampler.note(5)
    assert sampler.scores(logits, [4]).tolist() == [1.0, 0.5, -2.0, -1.0, -torch.inf, 0.5]
    assert sampler.seen.nonzero().flatten().tolist() == [1, 2, 4, 5]


@pytest.mark.parametrize("draw", [0.0, 0.5, 1.0 - 2**-53])
def test_a_draw_never_lands_on_a_forbidden_id(draw: float) -> None:
    params = SamplingParams(do_sample=True)
    sampler = Sampler(params, 6, [])
    scores = sampler.scores(torch.tensor([5.0, 1.0, 1.0, 1.0, 5.0, 5.0]), [0, slice(4, None)])
    assert sampler.sample(scores, draw) in (1, 2, 3)


def test_the_seeds_of_replies_are_fixed_and_unrelated() -> None:
    seeds = {reply_seed(seed, commit) for seed in (-1, 0, 1, 2**70) for commit in range(100)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert reply_seed(0, 1) == 4952996671628478330
    first = [draws(SamplingParams(max_new=1, seed=reply_seed(0, commit)))[0, 0] for commit in range(500)]
    assert 0.45 < float(torch.stack(first).mean()) < 0.55


def test_what_draws_needs_a_seed() -> None:
    with pytest.raises(ValueError, match="requires a seed"):
        draws(SamplingParams(do_sample=True))
    assert torch.equal(draws(SamplingParams().seeded()), draws(SamplingParams(seed=0)))
    assert SamplingParams(seed=3).seeded().seed == 3
