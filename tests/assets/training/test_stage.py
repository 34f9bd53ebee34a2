"""What the training stages share."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.assets.conftest import Recipe


def test_a_time_is_due_once_in_each_interval(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = recipe("stage")
    clock = [0.0]
    monkeypatch.setattr(stage.time, "monotonic", lambda: clock[0])
    due = stage.Every(90)
    seen = []
    for now in (10.0, 89.0, 91.0, 92.0, 180.0, 181.5, 400.0, 401.0):
        clock[0] = now
        seen.append(bool(due))
    assert seen == [False, False, True, False, False, True, True, False]


def test_trained_weights_are_blended_with_those_of_the_start(recipe: Recipe) -> None:
    module = nn.Linear(2, 1)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[4.0, 8.0]]))
        module.bias.fill_(1.0)
    start = {"weight": torch.tensor([[0.0, 4.0]]), "bias": torch.tensor([3.0])}
    recipe("stage").blend(module, start, 0.25)
    assert module.weight.tolist() == [[1.0, 5.0]]
    assert module.bias.tolist() == [2.5]
