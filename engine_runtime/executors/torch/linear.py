"""Linear layers of the torch executor, with weights stored as [in, out].

A row times a matrix [in, out] reads memory sequentially, twice as fast on a CPU as the checkpoint's
[out, in]. A weight format (quantization.py) rounds the weights to its levels but does not reduce their size
here. Quantized checkpoints have their own linear layers (executors/torch/quantized_linear.py). Any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine_runtime.options import WeightFormat
from engine_runtime.quantization import quantize


class Linear(Protocol):
    """A linear layer, independent of the storage format of its weight."""

    def __call__(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, out]."""

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """The product of x [n, in], added to `residual` [n, out]."""


@dataclass(frozen=True, slots=True)
class DenseLinear:
    """A weight [in, out] in a floating-point dtype."""

    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, out]."""
        return x @ self.weight

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """The product of x [n, in], added to `residual` [n, out]; in float32 in one pass."""
        if x.dtype == torch.float32:
            return torch.addmm(residual, x, self.weight)
        return residual + x @ self.weight


def packed_linear(parts: Sequence[Tensor], weight_format: WeightFormat) -> DenseLinear:
    """Weights [out, in], fake-quantized and concatenated to one contiguous [in, sum of out]."""
    weight = parts[0] if len(parts) == 1 else torch.cat(list(parts))
    return DenseLinear(quantize(weight, weight_format).dense(weight.dtype).t().contiguous())
