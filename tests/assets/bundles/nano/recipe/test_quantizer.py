"""The codebook of a training: where its entries go."""

from __future__ import annotations

import torch

from tests.assets.conftest import Recipe


def test_k_means_and_the_codebook_find_the_clusters(recipe: Recipe) -> None:
    torch.manual_seed(0)
    quantizer = recipe("quantizer").Quantizer(torch.zeros(8, 2))
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])
    points = (centres[:, None] + 0.1 * torch.randn(4, 50, 2)).reshape(-1, 2)
    quantizer.k_means(points)
    assert torch.cdist(centres, quantizer.entries).min(1).values.max() < 1.0
    hidden = points.view(4, 50, 2).clone().requires_grad_()
    straight, commitment = quantizer(hidden)
    assert commitment.item() < 0.1
    assert torch.cdist(straight.detach().reshape(-1, 2), quantizer.entries).min(1).values.max() < 1.0
    straight.sum().backward()
    assert hidden.grad is not None
    assert torch.equal(hidden.grad, torch.ones_like(hidden))


def test_dead_entries_are_put_where_data_is(recipe: Recipe) -> None:
    torch.manual_seed(0)
    entries = torch.tensor([[0.0], [1000.0]])
    quantizer = recipe("quantizer").Quantizer(entries, decay=0.5)
    for _ in range(10):
        quantizer(torch.rand(2, 20, 1))
    assert quantizer.entries.max() < 2
