"""Weight formats of a linear layer: native, fp8, int8 and int4, with quantization and dequantization.

In: a weight [out, in] as the checkpoint has it. Out: a `Matrix`, row-major by output, as the kernels read it.
Symmetric, without calibration data:

    fp8   e4m3, one float32 scale per output row, so that the largest weight becomes 448
    int8  one float32 scale per output row, so that the largest weight becomes 127
    int4  one float16 scale per 128 inputs of a row, so that the weight of largest size becomes -8

An int4 byte holds input i of its group in the low half and input i + 64 in the high half, both plus 8: a
kernel reads two contiguous ranges of inputs from one contiguous range of bytes. Plain torch, on any device
and in any thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine_runtime.options import WeightFormat

GROUP = 128
"""Inputs that share a scale in int4."""
FP8 = torch.float8_e4m3fn
FP8_MAX = torch.finfo(FP8).max


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight in one of the formats.

    Attributes:
        format: how `weight` is to be read.
        shape: (out, in) of the dense weight.
        weight: [out, in]; for int4 uint8 [out, groups * 64].
        scale: None, [out] float32, or [out, groups] float16.
    """

    format: WeightFormat
    shape: tuple[int, int]
    weight: Tensor
    scale: Tensor | None = None

    @property
    def bytes(self) -> int:
        """Bytes that a step reads for this weight."""
        parts = [self.weight] if self.scale is None else [self.weight, self.scale]
        return sum(part.numel() * part.element_size() for part in parts)

    def dense(self, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
        """The dequantized weight [out, in]; written to the start of the flat buffer `out` if given."""
        if self.scale is None:
            return self.weight.to(dtype)
        target = torch.empty(self.shape, dtype=dtype, device=self.weight.device)
        if out is not None:
            target = out[: self.shape[0] * self.shape[1]].view(self.shape)
        if self.format == "int4":
            wide = _unpack(self.weight).float() * self.scale.float()[..., None]
            return target.copy_(wide.flatten(1)[:, : self.shape[1]])
        return target.copy_(self.weight.to(dtype)).mul_(self.scale[:, None])


def quantize(weight: Tensor, weight_format: WeightFormat) -> Matrix:
    """Quantize a dense weight [out, in] to the given format, on its device."""
    shape = (weight.shape[0], weight.shape[1])
    if weight_format == "native":
        return Matrix(weight_format, shape, weight.contiguous())
    if weight_format == "int4":
        return _int4(weight, shape)
    limit = FP8_MAX if weight_format == "fp8" else 127.0
    wide = weight.float()
    # A tensor, not a number: a GPU would multiply by 1 / limit and round some weights differently from a CPU.
    scale = _nonzero(wide.abs().amax(dim=1) / torch.tensor(limit, device=wide.device))
    scaled = (wide / scale[:, None]).clamp_(-limit, limit)
    stored = scaled.to(FP8) if weight_format == "fp8" else scaled.round_().to(torch.int8)
    return Matrix(weight_format, shape, stored, scale)


def bytes_of(shape: tuple[int, int], weight_format: WeightFormat, native_bytes: int) -> int:
    """Bytes of a weight [out, in] in the given format, computed from its shape."""
    rows, columns = shape
    if weight_format == "native":
        return rows * columns * native_bytes
    if weight_format == "int4":
        return rows * -(-columns // GROUP) * (GROUP // 2 + 2)
    return rows * columns + rows * 4


def to_fp8(values: Tensor) -> Tensor:
    """Values in e4m3, saturating."""
    return values.clamp(-FP8_MAX, FP8_MAX).to(FP8)


def _int4(weight: Tensor, shape: tuple[int, int]) -> Matrix:
    columns = -(-shape[1] // GROUP) * GROUP
    groups = F.pad(weight.float(), (0, columns - shape[1])).view(shape[0], -1, GROUP)
    largest = groups.gather(-1, groups.abs().argmax(dim=-1, keepdim=True))[..., 0]
    # NOTE: float16 is coarse below its smallest normal number; such groups are practically zero.
    wanted = largest / -8
    floor = torch.finfo(torch.float16).tiny
    scale = torch.where(wanted.abs() < floor, floor, wanted).to(torch.float16)
    levels = (groups / scale.float()[..., None]).round_().clamp_(-8, 7).add_(8).to(torch.uint8)
    low, high = levels[..., : GROUP // 2], levels[..., GROUP // 2 :]
    return Matrix("int4", shape, (low | (high << 4)).flatten(1).contiguous(), scale)


def _unpack(packed: Tensor) -> Tensor:
    """[out, groups * 64] uint8 -> [out, groups, 128] int8 in -8..7."""
    halves = packed.view(packed.shape[0], -1, GROUP // 2)
    return torch.cat((halves & 15, halves >> 4), dim=-1).to(torch.int8) - 8


def _nonzero(scale: Tensor) -> Tensor:
    """A row of zeros is stored as zeros with scale 1."""
    return torch.where(scale == 0, 1.0, scale)
