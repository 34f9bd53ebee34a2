"""AWQ: scale factors of the inputs of an int4 product, so that important weights are scaled up.

In: weights [out, in] that share their input, and its calibration statistics. Out: the factor that the engine
multiplies the input with (`prequant_scaling_factor`), and the weights divided by it. Of the scales
mean(|x|)^alpha, alpha from 0 (none) to 1, that with the least squared error of the product over the kept
inputs is taken: Lin et al., "AWQ: Activation-aware Weight Quantization" (2023), section 3.2, with its
normalization by the geometric mean of the smallest and the largest scale. Plain torch, any device and thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine_runtime.tensorrt.checkpoint.scales import int4_dense, int4_levels, int4_scale

STEPS = 20
SEARCHED_OUTPUTS = 1024
"""Outputs of a weight, at least, that the search looks at, spread over all of them: one factor serves them
all, and an estimate of its error is enough."""
_LEAST = 1e-4
"""A scale below this would only blow up the others."""


@dataclass(frozen=True, slots=True)
class Smoothing:
    """Result of the search.

    Attributes:
        factor: [in], in the dtype of the network; the input is multiplied with it.
        alpha: the chosen exponent.
        error: relative squared error of the layer's output over the kept inputs.
    """

    factor: Tensor
    alpha: float
    error: float


def search(weights: Sequence[Tensor], rows: Tensor, mean: Tensor, size: int, dtype: torch.dtype) -> Smoothing:
    """The best factor for int4 weights [out, in] in groups of `size`.

    `rows` [n, in] are inputs that were seen, `mean` [in] is the mean of their absolute values over all that
    were seen; on the device of the weights.
    """
    rows = rows.float()
    weights = [weight[:: max(1, weight.shape[0] // SEARCHED_OUTPUTS)] for weight in weights]
    wanted = [rows @ weight.float().t() for weight in weights]
    energy = sum(float(product.square().sum()) for product in wanted)
    best: Smoothing | None = None
    for step in range(STEPS + 1):
        factor = _factor(mean, step / STEPS, dtype)
        smoothed = rows.to(dtype) * factor  # in the dtype in which the engine multiplies
        error = 0.0
        for weight, product in zip(weights, wanted, strict=True):
            dense, _ = rounded(weight, factor, rows, size)
            error += float((smoothed.float() @ dense.float().t() - product).square().sum())
        if best is None or error < best.error:
            best = Smoothing(factor, step / STEPS, error)
    assert best is not None
    return Smoothing(best.factor, best.alpha, best.error / energy if energy else 0.0)


def rounded(weight: Tensor, factor: Tensor, rows: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The weight for inputs times `factor`, rounded, and its scales [out, in / size]. [out, in]"""
    larger = weight.float() / factor.float()
    importance = (rows.float() * factor.float()).square().mean(dim=0)
    scale = int4_scale(larger, size, factor.dtype, importance)
    return int4_dense(int4_levels(larger, scale), scale), scale


def _factor(mean: Tensor, alpha: float, dtype: torch.dtype) -> Tensor:
    scale = mean.float().pow(alpha).clamp_min(_LEAST)
    scale = scale / (scale.max() * scale.min()).sqrt()
    return (1 / scale).to(dtype)
