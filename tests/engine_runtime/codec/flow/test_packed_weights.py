"""Packed weights against the layers they were packed from."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from engine_runtime.codec.flow.packed_weights import WeightPacker

PACK = WeightPacker(torch.float32, torch.device("cpu"))


@torch.no_grad()
def test_layers() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 7, 6)
    linear, norm = nn.Linear(6, 4), nn.LayerNorm(6)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    assert torch.allclose(PACK.affine(linear)(x), linear(x), atol=1e-6)
    assert torch.allclose(PACK.norm(norm, 3.0)(x), 3.0 * norm(x), atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("size", [1, 3, 4])
def test_windows_are_the_convolution(size: int) -> None:
    torch.manual_seed(size)
    conv, x = nn.Conv1d(6, 5, size), torch.randn(2, 9, 6)
    want = conv(x.transpose(1, 2)).transpose(1, 2)
    assert torch.allclose(PACK.windowed(conv)(x), want, atol=1e-5)
    # two ranges of input channels sum to the complete result; one of them has the bias
    first, rest = PACK.windowed(conv, 0, 2, bias=False), PACK.windowed(conv, 2)
    halves = first(x[..., :2].contiguous()) + rest(x[..., 2:].contiguous())
    assert torch.allclose(halves, want, atol=1e-5)
    if size == 1:
        assert torch.allclose(PACK.pointwise(conv)(x), want, atol=1e-5)


def test_prepared_weights_are_copies() -> None:
    linear = nn.Linear(3, 3)
    prepared = PACK.affine(linear)
    nn.init.zeros_(linear.weight)
    assert not prepared.weight.requires_grad
    assert prepared.weight.abs().max() > 0
    half = WeightPacker(torch.bfloat16, torch.device("cpu")).affine(linear)
    assert half.weight.dtype == torch.bfloat16
