"""Dense convolutions of stride 1 on a CPU, over rows of channels, with few multiplications.

In: rows [T, C] contiguous, one row of C channels per time step. Out: the rows of all time steps with complete
context: only the true start and end of a signal are padded. oneDNN reads this layout ("channels last")
without a copy; with many channels, Winograd's algorithm needs at most half of the multiplications. No state.
Runs in the thread of its caller.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

LEAST_CHANNELS = 128
"""Minimum number of input and output channels for Winograd's algorithm: with fewer, its transforms cost more
than they save."""
POINTS = {3: (2 / 3, 3 / 2), 5: (0.5, 1.0, 2.0), 7: (0.4, 0.8, 1.25, 2.5)}
"""For each number of taps the evaluation points of the polynomials, with both signs, besides 0 and infinity;
chosen on a grid for the smallest rounding error."""
TILE = 4
"""Output rows per polynomial product."""


def image(rows: Tensor) -> Tensor:
    """[T, C] contiguous -> [1, C, 1, T], a view in the memory format channels_last."""
    return rows.view(1, 1, *rows.shape).permute(0, 3, 1, 2)


def rows_of(image: Tensor) -> Tensor:
    """[1, C, 1, T] -> [T, C] contiguous, a view if the memory format is channels_last."""
    return image.permute(0, 2, 3, 1).reshape(image.shape[3], image.shape[1])


def without(rows: Tensor, before: int, behind: int) -> Tensor:
    """All rows except `count` at either end."""
    return rows[before : rows.shape[0] - behind]


class DirectConvolution:
    """A convolution by oneDNN. A dtype other than float32 applies to its factors only: input and output rows
    are float32."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, dilation: int = 1, dtype: torch.dtype = torch.float32
    ) -> None:
        """`weight` [out, in, taps], of an odd number of taps."""
        weight = weight.detach().to(dtype, copy=True)
        self._weight = weight[:, :, None].contiguous(memory_format=torch.channels_last)
        self._bias = None if bias is None else bias.detach().to(dtype, copy=True)
        self._dilation = (1, dilation)
        self.reach = weight.shape[2] // 2 * dilation

    def __call__(self, rows: Tensor, at_start: bool, at_end: bool) -> Tensor:
        """[T, in] -> [T - 2 reach, out]; at an end of the signal `reach` rows of zeros are added first."""
        if at_start or at_end:
            rows = F.pad(rows, (0, 0, self.reach * at_start, self.reach * at_end))
        rows = rows.to(self._weight.dtype)
        return rows_of(F.conv2d(image(rows), self._weight, self._bias, dilation=self._dilation)).float()


class WinogradConvolution:
    """A convolution as polynomial products, each evaluated at `TILE + taps - 1` points."""

    def __init__(self, weight: Tensor, bias: Tensor, dilation: int = 1) -> None:
        """`weight` [out, in, taps]; the number of taps must be a key of `POINTS`."""
        self._taps, self._dilation = weight.shape[2], dilation
        self.reach = self._taps // 2 * dilation
        to_values, taps_to_values, to_rows = _transforms(self._taps)
        self._to_values = torch.from_numpy(to_values).float()  # [points, points]
        self._to_rows = torch.from_numpy(to_rows).float()  # [TILE, points]
        values = torch.einsum("pt,oit->pio", torch.from_numpy(taps_to_values), weight.detach().double())
        self._weight = values.float().contiguous()  # [points, in, out]
        self._bias = bias.detach().clone()

    def __call__(self, rows: Tensor, at_start: bool, at_end: bool) -> Tensor:
        dilation, (points, channels, out_channels) = self._dilation, self._weight.shape
        before, behind = self.reach * at_start, self.reach * at_end
        length = rows.shape[0] + before + behind - 2 * self.reach
        tiles = -(-length // (TILE * dilation))
        wanted = (tiles * TILE + self._taps - 1) * dilation
        rows = F.pad(rows, (0, 0, before, wanted - before - rows.shape[0]))
        # dilation: the rows between two taps are treated as channels
        width = dilation * channels
        windows = rows.as_strided((tiles, points, width), (TILE * width, width, 1))
        values = torch.bmm(self._to_values.expand(tiles, -1, -1), windows)
        result = rows.new_empty((tiles, TILE, dilation, out_channels))
        for phase, part in enumerate(values.split(channels, dim=2)):
            products = torch.bmm(part.transpose(0, 1), self._weight)  # [points, tiles, out]
            own = torch.bmm(self._to_rows.expand(tiles, -1, -1), products.transpose(0, 1))
            torch.add(own, self._bias, out=result[:, :, phase])
        return result.view(-1, out_channels)[:length]


Convolution = DirectConvolution | WinogradConvolution


def convolution(weight: Tensor, bias: Tensor, dilation: int, dtype: torch.dtype) -> Convolution:
    """The faster implementation for a weight [out, in, taps]."""
    out_channels, channels, taps = weight.shape
    if dtype == torch.float32 and min(out_channels, channels) >= LEAST_CHANNELS and taps in POINTS:
        return WinogradConvolution(weight, bias, dilation)
    return DirectConvolution(weight, bias, dilation, dtype)


def _transforms(taps: int) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The transform matrices of Winograd's algorithm: window of rows to values, taps to values, products of
    values to rows.

    They are those of a product of polynomials (values of both factors, then interpolation), transposed.
    """
    points = [0.0, *(sign * point for point in POINTS[taps] for sign in (1.0, -1.0))]
    size = TILE + taps - 1
    assert len(points) == size - 1, f"{taps} taps want {size - 1} points, not {len(points)}"

    def values(coefficients: int) -> NDArray[np.float64]:
        powers = np.vander(points, coefficients, increasing=True)
        return np.vstack((powers, np.eye(coefficients)[-1]))  # the last row is the value at infinity

    to_values, taps_to_values, to_rows = np.linalg.inv(values(size)).T, values(taps), values(TILE).T
    # balance the magnitudes, so that no intermediate value is large; powers of two are exact
    for_taps = 2.0 ** np.round(np.log2(np.linalg.norm(taps_to_values, axis=1)))
    for_rows = 2.0 ** np.round(np.log2(np.linalg.norm(to_values, axis=1) * for_taps))
    return (
        to_values * (for_taps / for_rows)[:, None],
        taps_to_values / for_taps[:, None],
        to_rows * for_rows,
    )
