"""Linear layers of a quantized checkpoint for the torch executor, with the engine's rounding.

In: the tensors of one or more modules that share their input. Out: a `Linear`. FP8 quantizes the input to
e4m3 with its calibrated scale, multiplies the quantized values and scales the sum, as the engine does; int4
multiplies the input by the AWQ factor first; int8 uses the weights that the library quantizes at load. Size
and speed are those of unquantized weights: it shows the accuracy of a format, not its savings. Values that
the engine rounds to the checkpoint's dtype before a product are rounded here as well, whatever the compute
dtype. Any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine_runtime.errors import BundleError
from engine_runtime.executors.torch.linear import DenseLinear, Linear
from engine_runtime.tensorrt.checkpoint.format import CheckpointConfig
from engine_runtime.tensorrt.checkpoint.reading import ReadTensor
from engine_runtime.tensorrt.checkpoint.scales import fp8_levels, int4_dense, int8_rounded, unpack_int4


@dataclass(frozen=True, slots=True)
class Fp8Linear:
    """e4m3 times e4m3.

    Attributes:
        levels: [in, out], e4m3 values in a dtype that torch can multiply on every device.
        input_scale: [1] float32, dequantization scale of the input.
        weight_scale: [1] float32, dequantization scale of `levels`.
    """

    levels: Tensor
    input_scale: Tensor
    weight_scale: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, out]."""
        rounded = fp8_levels(x, self.input_scale).to(self.levels.dtype)
        return ((rounded @ self.levels).float() * (self.input_scale * self.weight_scale)).to(x.dtype)

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """The product of x [n, in], added to `residual` [n, out]."""
        return residual + self(x)


@dataclass(frozen=True, slots=True)
class SmoothedLinear:
    """An unquantized weight whose input is multiplied by a factor [in]."""

    dense: DenseLinear
    factor: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, out]."""
        return self.dense(x * self.factor)

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """The product of x [n, in], added to `residual` [n, out]."""
        return self.dense.added_to(residual, x * self.factor)


def read_linear(
    config: CheckpointConfig,
    read: ReadTensor,
    modules: Sequence[str],
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> Linear:
    """The fused linear layer of modules that share their input, outputs concatenated, to run in `dtype`.

    `read` returns tensors of the checkpoint by name.
    """

    def each(suffix: str) -> list[Tensor]:
        return [read(f"{module}.{suffix}").to(device) for module in modules]

    algorithm = config.quantization.algorithm
    if not config.is_quantized(modules[0]) or algorithm == "W8A16":
        weight = torch.cat(each("weight"))
        rounded = int8_rounded(weight) if config.is_quantized(modules[0]) else weight
        return DenseLinear(_columns(rounded.to(dtype)))
    if algorithm == "FP8":
        return _fp8(each("weight"), each("weights_scaling_factor"), each("activation_scaling_factor"), dtype)
    levels = [unpack_int4(packed) for packed in each("weight")]
    parts = zip(levels, each("weights_scaling_factor"), strict=True)
    weight = torch.cat([int4_dense(level, scale) for level, scale in parts])
    factors = each("prequant_scaling_factor")
    if not all(torch.equal(factor, factors[0]) for factor in factors):
        raise BundleError(
            f"{' and '.join(modules)} have different prequant_scaling_factors, but one input. "
            "Quantize the checkpoint with `moss-voice trt quantize`."
        )
    return SmoothedLinear(DenseLinear(_columns(weight.to(dtype))), factors[0].to(dtype))


def _fp8(
    weights: list[Tensor], scales: list[Tensor], input_scales: list[Tensor], dtype: torch.dtype
) -> Fp8Linear:
    """Fused as the engine fuses a gated MLP: with the largest scale, to which the other weights are
    requantized."""
    scale = torch.stack(scales).amax(dim=0)
    levels = [
        weight if torch.equal(own, scale) else fp8_levels(weight.float() * own, scale)
        for weight, own in zip(weights, scales, strict=True)
    ]
    # NOTE: sums of unscaled levels reach 448 * 448 * in, which overflows float16.
    wide = torch.float32 if dtype == torch.float16 else dtype
    joined = torch.cat([level.to(wide) for level in levels])
    return Fp8Linear(_columns(joined), torch.stack(input_scales).amax(dim=0), scale)


def _columns(weight: Tensor) -> Tensor:
    # Always a copy: a memory-mapped tensor would change with its file.
    return weight.t().contiguous()
