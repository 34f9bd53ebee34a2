"""Packed weights of the cached backends: cast, detached, and convolutions as products over windows of rows.

In: layers of a network. Out: small callables on [B, T, C] tensors. No state; shared by all streams.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Affine:
    """x @ weight.T + bias."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Windowed:
    """A convolution without padding, over `size` neighbouring rows."""

    weight: Tensor
    bias: Tensor | None
    size: int

    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, in] contiguous -> [B, T - size + 1, out]."""
        batch, length, width = x.shape
        if torch.compiler.is_exporting():  # other libraries do not support overlapping views
            parts = [x[:, first : length - self.size + 1 + first] for first in range(self.size)]
            return F.linear(torch.cat(parts, dim=2), self.weight, self.bias)
        if batch == 1 and x.device.type == "cpu":  # as a matrix, the product includes the bias
            rows = x.as_strided((length - self.size + 1, self.size * width), (width, 1))
            return F.linear(rows, self.weight, self.bias)[None]
        rows = x.as_strided((batch, length - self.size + 1, self.size * width), (length * width, width, 1))
        return F.linear(rows, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Norm:
    """Layer norm over the last axis."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        return F.layer_norm(x, self.bias.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True, slots=True)
class WeightPacker:
    """Packs tensors and layers of a network for the dtype and device of a cached path."""

    dtype: torch.dtype
    device: torch.device

    def tensor(self, value: Tensor) -> Tensor:
        """A contiguous copy."""
        return value.detach().to(self.device, self.dtype, copy=True).contiguous()

    def affine(self, layer: nn.Linear) -> Affine:
        """A linear layer."""
        return Affine(self.tensor(layer.weight), None if layer.bias is None else self.tensor(layer.bias))

    def windowed(
        self, conv: nn.Conv1d, first_input: int = 0, last_input: int | None = None, bias: bool = True
    ) -> Windowed:
        """A convolution of stride 1; `first_input` and `last_input` select a range of its input channels."""
        weight = conv.weight[:, first_input:last_input].permute(0, 2, 1).flatten(1)
        offset = self.tensor(conv.bias) if bias and conv.bias is not None else None
        return Windowed(self.tensor(weight), offset, conv.kernel_size[0])

    def pointwise(
        self, conv: nn.Conv1d, first_input: int = 0, last_input: int | None = None, bias: bool = True
    ) -> Affine:
        """A convolution of width 1, with the arguments of `windowed`."""
        rows = self.windowed(conv, first_input, last_input, bias)
        return Affine(rows.weight, rows.bias)

    def norm(self, layer: nn.LayerNorm, factor: float = 1.0) -> Norm:
        """A layer norm with its result multiplied by `factor`."""
        return Norm(self.tensor(layer.weight * factor), self.tensor(layer.bias * factor), layer.eps)
