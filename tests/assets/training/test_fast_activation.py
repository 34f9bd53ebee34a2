"""The activation of the vocoder's training is BigVGAN's own."""

from __future__ import annotations

import copy

import torch
from torch import nn

from engine_runtime.models.bigvgan_package import Activation1d, SnakeBeta
from tests.assets.conftest import Recipe


def _activation() -> Activation1d:
    torch.manual_seed(0)
    activation = Activation1d(activation=SnakeBeta(6, alpha_logscale=True))
    with torch.no_grad():
        activation.act.alpha.normal_(0, 0.5)
        activation.act.beta.normal_(0, 0.5)
    return activation


def test_equal_to_the_package_away_from_the_edges(recipe: Recipe) -> None:
    original = _activation()
    fast = recipe("fast_activation").FastActivation(original, compiled=False)
    x = torch.randn(2, 6, 50)
    torch.testing.assert_close(fast(x)[..., 8:-8], original(x)[..., 8:-8], atol=1e-5, rtol=1e-5)
    assert fast(x).shape == x.shape


def test_replaced_in_place_with_the_same_parameters(recipe: Recipe) -> None:
    model = nn.Sequential(nn.Conv1d(6, 6, 1), nn.ModuleList([_activation()]))
    before = copy.deepcopy(model.state_dict())
    recipe("fast_activation").use_fast_activations(model, compiled=False)
    assert not any(isinstance(module, Activation1d) for module in model.modules())
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
