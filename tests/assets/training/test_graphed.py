"""Training steps, learning rate and moving average, on the CPU."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import nn

from tests.assets.conftest import Recipe


@pytest.fixture(scope="module")
def graphed(recipe: Recipe) -> ModuleType:
    return recipe("graphed")


def test_a_step_on_the_cpu_is_the_function(graphed: ModuleType) -> None:
    step = graphed.Step(lambda a, b: (a + b, a * b), "cpu")
    total, product = step(torch.tensor(2.0), torch.tensor(5.0))
    assert (total.item(), product.item()) == (7.0, 10.0)
    assert step.graph is None


@pytest.mark.slow
def test_steps_train(graphed: ModuleType) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = graphed.adamw(model, "cpu", (0.9, 0.99), 0.0)
    graphed.set_rate(optimizer, 0.05)
    x = torch.randn(64, 3)
    wanted = x @ torch.tensor([[1.0], [-2.0], [0.5]]) + 1

    def train(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss = (model(x) - wanted).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return (loss.detach(),)

    step = graphed.Step(train, "cpu")
    losses = [step(x)[0].item() for _ in range(200)]
    assert losses[-1] < 0.01 * losses[0]


def test_the_rate_starts_low_peaks_and_falls(graphed: ModuleType) -> None:
    rates = [graphed.cosine(progress / 100, 2e-3) for progress in range(101)]
    assert rates[0] == pytest.approx(2e-6)
    assert max(rates) == pytest.approx(2e-3, rel=0.01)
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert rates[-1] == pytest.approx(0.02 * 2e-3)
    assert graphed.cosine(1.5, 1.0, floor=0.05) == pytest.approx(0.05)


def test_a_rate_may_be_a_tensor(graphed: ModuleType) -> None:
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=torch.tensor(1.0))
    graphed.set_rate(optimizer, 0.25)
    assert optimizer.param_groups[0]["lr"].item() == 0.25


def test_the_average_forgets_slowly_and_replaces_the_weights(graphed: ModuleType) -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 0.0)
    average, wanted = graphed.Average(model, 0.5), 0.0
    for count in range(1, 21):
        nn.init.constant_(model.weight, float(count))
        average.update()
        decay = min(0.5, (1 + count) / (10 + count))
        wanted = decay * wanted + (1 - decay) * count
    assert model.weight.item() == 20
    average.apply()
    assert model.weight.item() == pytest.approx(wanted)


def test_the_average_is_lent_and_the_weights_come_back(graphed: ModuleType) -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    average = graphed.Average(model, 0.5)
    nn.init.constant_(model.weight, 5.0)
    weight = model.weight
    with average.applied():
        assert weight.item() == 1.0
    assert model.weight is weight
    assert weight.item() == 5.0
