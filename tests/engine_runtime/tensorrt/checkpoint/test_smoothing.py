"""The AWQ search: its factors reduce the error, and are those used by the engine."""

from __future__ import annotations

import torch
from torch import Tensor

from engine_runtime.tensorrt.checkpoint import scales


def _case(outliers: float) -> tuple[list[Tensor], Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(32, 128, generator=generator), torch.randn(16, 128, generator=generator)]
    rows = torch.randn(64, 128, generator=generator)
    rows[:, ::16] *= outliers
    return weights, rows, rows.abs().mean(dim=0)


def _error(weights: list[Tensor], rows: Tensor, factor: Tensor) -> float:
    wrong = complete = 0.0
    for weight in weights:
        dense, _ = scales.int4_smoothed(weight, factor, rows, 64)
        wanted = rows @ weight.t()
        wrong += float(((rows * factor) @ dense.t() - wanted).square().sum())
        complete += float(wanted.square().sum())
    return wrong / complete


def test_large_inputs_are_scaled_down_and_that_helps() -> None:
    weights, rows, mean = _case(30.0)
    found = scales.find_smoothing(weights, rows, mean, 64, torch.float32)
    assert 0 < found.alpha <= 1
    assert found.factor.shape == (128,)
    assert found.factor[0] < 0.6 * found.factor[1]
    none = _error(weights, rows, torch.ones(128))
    assert abs(_error(weights, rows, found.factor) - found.error) < 1e-6
    assert found.error < 0.8 * none


def test_the_search_is_the_best_of_all_its_steps() -> None:
    weights, rows, mean = _case(3.0)
    found = scales.find_smoothing(weights, rows, mean, 64, torch.float32)
    errors = []
    for step in range(scales.SMOOTHING_STEPS + 1):
        scale = mean.pow(step / scales.SMOOTHING_STEPS)
        scale = scale / (scale.max() * scale.min()).sqrt()
        errors.append(_error(weights, rows, 1 / scale))
    assert abs(min(errors) - found.error) < 1e-6
    assert errors.index(min(errors)) == round(found.alpha * scales.SMOOTHING_STEPS)


def test_the_factor_has_the_numbers_that_the_engine_multiplies_with() -> None:
    weights, rows, mean = _case(30.0)
    found = scales.find_smoothing(
        [weight.bfloat16() for weight in weights], rows.bfloat16(), mean, 64, torch.bfloat16
    )
    assert found.factor.dtype == torch.bfloat16
    dense, scale = scales.int4_smoothed(weights[0].bfloat16(), found.factor, rows, 64)
    assert dense.dtype == scale.dtype == torch.bfloat16
    # Weights were divided by the rounded factor, so that only their own rounding is left.
    again = dense.float() * found.factor.float()
    assert (again - weights[0]).norm() / weights[0].norm() < 0.2


def test_a_tall_weight_is_searched_at_outputs_spread_over_it() -> None:
    _, rows, mean = _case(10.0)
    tall = torch.randn(2 * scales.SEARCHED_OUTPUTS, 128, generator=torch.Generator().manual_seed(2))
    tall[1::2] *= 1000
    found = scales.find_smoothing([tall], rows, mean, 64, torch.float32)
    every_second = scales.find_smoothing([tall[::2]], rows, mean, 64, torch.float32)
    assert torch.equal(found.factor, every_second.factor)
    assert found.error == every_second.error


def test_inputs_that_are_always_zero_do_no_harm() -> None:
    weights, rows, mean = _case(1.0)
    rows[:, 5], mean[5] = 0, 0
    found = scales.find_smoothing(weights, rows, mean, 64, torch.float32)
    assert found.factor.isfinite().all()
    assert found.error < 0.02
