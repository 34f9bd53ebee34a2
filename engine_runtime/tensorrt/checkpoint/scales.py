"""Formats of a quantized TensorRT-LLM checkpoint: scales, rounding, packing, and their inverses.

In: unquantized weights [out, in] and the calibration statistics of their inputs. Out: the tensors that the
library reads. All formats are symmetric.

    FP8        e4m3, one scale per tensor, amax / 448, for the weight and for its input
    W8A16      one scale per output, amax / 128; the library quantizes when loading, so nothing is stored
    W4A16_AWQ  levels -8..7, one scale per group of inputs, amax / 7; two outputs per byte

Layouts and formulas are those of TensorRT-LLM 1.x (quantization/functional.py, models/modeling_utils.py:
preprocess_weights, symmetric_quantize of the weight-only kernels) and of ModelOpt's exporter for it.

AWQ also searches a factor for the inputs of an int4 product, so that important weights are scaled up: the
engine multiplies the input with it (`prequant_scaling_factor`), and the weights are divided by it. Of the
scales mean(|x|)^alpha, alpha from 0 (none) to 1, that with the least squared error of the product over the
kept inputs is taken: Lin et al., "AWQ: Activation-aware Weight Quantization" (2023), section 3.2, with its
normalization by the geometric mean of the smallest and the largest scale. Plain torch on any device and in
any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine_runtime.errors import MossVoiceError
from engine_runtime.quantization import FP8_MAX, to_fp8

INT4_MAX, INT8_LEVELS = 7, 128
GROUP_SIZES = (128, 64)
"""Group sizes for int4 that the library's kernels support; the first divisor is used."""
_CLIPS = tuple(1 - step / 20 for step in range(10))
"""Fractions of a group's largest weight that may be mapped to the largest level."""


class QuantizeError(MossVoiceError):
    """A model or a request that cannot be quantized."""


def fp8_scale(amax: Tensor) -> Tensor:
    """Scale [1] in float32 that maps `amax` to the largest e4m3 number; 1 if all values are zero."""
    scale = amax.float().reshape(1) / FP8_MAX
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def fp8_levels(values: Tensor, scale: Tensor) -> Tensor:
    """Values in units of `scale`, rounded to e4m3; larger values are clamped."""
    return to_fp8(values.float() / scale)


def int8_rounded(weight: Tensor) -> Tensor:
    """A weight [out, in] as dequantized by the library's weight-only product, in the same dtype.

    Levels come from the scale in float32, and the scale is kept in the weight's dtype.
    """
    scale = weight.float().abs().amax(dim=1, keepdim=True) / INT8_LEVELS
    levels = (
        (weight.float() / torch.where(scale > 0, scale, 1.0)).round_().clamp_(-INT8_LEVELS, INT8_LEVELS - 1)
    )
    return levels.to(weight.dtype) * scale.to(weight.dtype)


def group_size(inputs: int) -> int:
    """Number of inputs that share a scale, for a layer with this many inputs. QuantizeError if no group size
    divides it."""
    for size in GROUP_SIZES:
        if inputs % size == 0:
            return size
    raise QuantizeError(
        "A product of {inputs} inputs cannot be stored in int4: TensorRT-LLM's groups are of "
        "{group_sizes} inputs.",
        "Choose int8 or fp8 for this model.",
        inputs=inputs,
        group_sizes=" or ".join(map(str, GROUP_SIZES)),
    )


def int4_scale(weight: Tensor, size: int, dtype: torch.dtype, importance: Tensor | None = None) -> Tensor:
    """Scales [out, in / size] of groups of `size` inputs, as they are stored in `dtype`.

    The largest weight of a group becomes the largest level; with the `importance` [in] of the inputs (their
    mean squares) a smaller one may, if cutting it off costs less than the finer steps gain.
    """
    groups = weight.float().view(weight.shape[0], -1, size)
    floor = torch.finfo(torch.float16).tiny  # NOTE: a group of zeros still needs a scale to divide by
    full = (groups.abs().amax(dim=-1) / INT4_MAX).clamp_min_(floor)
    if importance is None:
        return full.to(dtype)
    weights = importance.float().view(1, -1, size)
    best, least = full.to(dtype), torch.full_like(full, torch.inf)
    for clip in _CLIPS:
        scale = (full * clip).to(dtype)
        error = (_rounded(groups, scale) - groups).square_().mul_(weights).sum(dim=-1)
        best = torch.where(error < least, scale, best)
        least = torch.minimum(error, least)
    return best


def int4_levels(weight: Tensor, scale: Tensor) -> Tensor:
    """Levels [out, in] int8 in -8..7 of a weight with scales [out, groups]."""
    groups = weight.float().view(weight.shape[0], scale.shape[1], -1)
    return _levels(groups, scale).flatten(1).to(torch.int8)


def int4_dense(levels: Tensor, scale: Tensor) -> Tensor:
    """Weight [out, in] of levels [out, in], in the scale's dtype, as the product multiplies by it."""
    groups = levels.view(levels.shape[0], scale.shape[1], -1).to(scale.dtype)
    return (groups * scale[..., None]).flatten(1)


def pack_int4(levels: Tensor) -> Tensor:
    """Levels [out, in] -> bytes [out / 2, in] int8: output 2 i in the low half, 2 i + 1 in the high half."""
    if levels.shape[0] % 2:
        raise QuantizeError(
            "A product of {shape} outputs cannot be packed in pairs.", "Choose int8.", shape=levels.shape[0]
        )
    low, high = levels[0::2], levels[1::2]
    return ((low & 15) | (high << 4)).contiguous()


def unpack_int4(packed: Tensor) -> Tensor:
    """Bytes [out / 2, in] int8 -> levels [out, in] int8 in -8..7."""
    # A shift to the left and back carries the sign of the low half over.
    halves = torch.stack(((packed << 4) >> 4, packed >> 4), dim=1)
    return halves.flatten(0, 1)


def _levels(groups: Tensor, scale: Tensor) -> Tensor:
    return (groups / scale.float()[..., None]).round_().clamp_(-INT4_MAX - 1, INT4_MAX)


def _rounded(groups: Tensor, scale: Tensor) -> Tensor:
    return _levels(groups, scale).mul_(scale.float()[..., None])


SMOOTHING_STEPS = 20
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


def find_smoothing(
    weights: Sequence[Tensor], rows: Tensor, mean: Tensor, size: int, dtype: torch.dtype
) -> Smoothing:
    """The best factor for int4 weights [out, in] in groups of `size`.

    `rows` [n, in] are inputs that were seen, `mean` [in] is the mean of their absolute values over all that
    were seen; on the device of the weights.
    """
    rows = rows.float()
    weights = [weight[:: max(1, weight.shape[0] // SEARCHED_OUTPUTS)] for weight in weights]
    wanted = [rows @ weight.float().t() for weight in weights]
    energy = sum(float(product.square().sum()) for product in wanted)
    best: Smoothing | None = None
    for step in range(SMOOTHING_STEPS + 1):
        factor = _factor(mean, step / SMOOTHING_STEPS, dtype)
        smoothed = rows.to(dtype) * factor  # in the dtype in which the engine multiplies
        error = 0.0
        for weight, product in zip(weights, wanted, strict=True):
            dense, _ = int4_smoothed(weight, factor, rows, size)
            error += float((smoothed.float() @ dense.float().t() - product).square().sum())
        if best is None or error < best.error:
            best = Smoothing(factor, step / SMOOTHING_STEPS, error)
    assert best is not None
    return Smoothing(best.factor, best.alpha, best.error / energy if energy else 0.0)


def int4_smoothed(weight: Tensor, factor: Tensor, rows: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The weight for inputs times `factor`, rounded, and its scales [out, in / size]. [out, in]"""
    larger = weight.float() / factor.float()
    importance = (rows.float() * factor.float()).square().mean(dim=0)
    scale = int4_scale(larger, size, factor.dtype, importance)
    return int4_dense(int4_levels(larger, scale), scale), scale


def _factor(mean: Tensor, alpha: float, dtype: torch.dtype) -> Tensor:
    scale = mean.float().pow(alpha).clamp_min(_LEAST)
    scale = scale / (scale.max() * scale.min()).sqrt()
    return (1 / scale).to(dtype)
