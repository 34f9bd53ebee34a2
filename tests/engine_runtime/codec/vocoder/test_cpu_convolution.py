"""Both kinds of convolution over rows against torch's in float64, and which one is taken."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from engine_runtime.codec.vocoder.cpu_convolution import (
    POINTS,
    Convolution,
    DirectConvolution,
    WinogradConvolution,
    convolution,
)

KINDS = [DirectConvolution, WinogradConvolution]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def expected(
    rows: Tensor, weight: Tensor, bias: Tensor, dilation: int, at_start: bool, at_end: bool
) -> Tensor:
    reach = weight.shape[2] // 2 * dilation
    padded = F.pad(rows.double(), (0, 0, reach * at_start, reach * at_end)).T[None]
    return F.conv1d(padded, weight.double(), bias.double(), dilation=dilation)[0].T


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("taps", sorted(POINTS))
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize(("at_start", "at_end"), [(False, False), (True, False), (False, True), (True, True)])
def test_rows_are_those_of_torch(
    kind: type[Convolution], taps: int, dilation: int, at_start: bool, at_end: bool
) -> None:
    weight, bias = random(6, 10, taps) / (10 * taps) ** 0.5, random(6, seed=1)
    conv = kind(weight, bias, dilation)
    for length in (2 * conv.reach + 1, 2 * conv.reach + 2, 47):
        rows = random(length, 10, seed=length)
        actual = conv(rows, at_start, at_end)
        want = expected(rows, weight, bias, dilation, at_start, at_end)
        torch.testing.assert_close(actual.double(), want, rtol=0, atol=2e-5)
        assert actual.is_contiguous()


@pytest.mark.parametrize("taps", sorted(POINTS))
def test_winograd_rounds_hardly_more_than_a_sum(taps: int) -> None:
    weight, bias, rows = random(64, 64, taps) / (64 * taps) ** 0.5, torch.zeros(64), random(200, 64, seed=1)
    want = expected(rows, weight, bias, 1, False, False)
    direct, winograd = (
        float((kind(weight, bias)(rows, False, False) - want).square().mean().sqrt()) for kind in KINDS
    )
    assert winograd <= 8 * direct <= 1e-5


def test_only_the_factors_are_of_another_number_format() -> None:
    weight, bias, rows = random(16, 16, 3), random(16, seed=1), random(40, 16, seed=2)
    actual = DirectConvolution(weight, bias, dtype=torch.bfloat16)(rows, True, True)
    assert actual.dtype == torch.float32
    rows, weight, bias = (part.bfloat16().float() for part in (rows, weight, bias))
    want = expected(rows, weight, bias, 1, True, True)
    torch.testing.assert_close(actual.double(), want, rtol=2**-8, atol=1e-2)


def test_many_channels_of_float32_are_for_winograd() -> None:
    def kind(channels: int, taps: int, dtype: torch.dtype = torch.float32) -> type[Convolution]:
        return type(convolution(torch.zeros(channels, channels, taps), torch.zeros(channels), 1, dtype))

    assert kind(128, 7) is kind(256, 3) is WinogradConvolution
    assert kind(64, 7) is kind(128, 11) is kind(128, 7, torch.bfloat16) is DirectConvolution
