"""The residual blocks of HiFT with a Triton kernel between their convolutions.

In: a folded HiFT. Out: the same network, modified in place: a block then alternates between a convolution and
a single pass over memory, where Snake alone would take six passes. `ResidualBlock.forward` is the reference
implementation. Imported only if Triton is available.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor, nn
from torch.nn import functional as F

from engine_runtime.cuda.kernels.snake import snake_values
from engine_runtime.models.hift import HiFT, ResidualBlock, Snake

_BLOCK = 1024


def use_kernels(network: HiFT) -> None:
    """Make the residual blocks of a network with folded weights use the kernel."""
    for module in network.modules():
        if isinstance(module, ResidualBlock):
            module.faster = residual


def residual(block: ResidualBlock, x: Tensor) -> Tensor:
    layers = list(zip(block.activations1, block.convs1, block.activations2, block.convs2, strict=True))
    active = _passed(x.contiguous(), None, snake=layers[0][0])
    for index, (_, conv1, activation2, conv2) in enumerate(layers):
        inner = _passed(_product(conv1, active), conv1, snake=activation2)
        x = x.contiguous()
        product = _product(conv2, inner)
        if index + 1 == len(layers):
            return _passed(product, conv2, residual=x)
        total = torch.empty_like(x)
        active = _passed(product, conv2, residual=x, snake=layers[index + 1][0], total=total)
        x = total
    return x


def _product(conv: nn.Module, x: Tensor) -> Tensor:
    """A convolution without its bias."""
    assert isinstance(conv, nn.Conv1d)
    return F.conv1d(x, conv.weight, None, conv.stride, conv.padding, conv.dilation).contiguous()


def _passed(
    x: Tensor,
    conv: nn.Module | None,
    *,
    residual: Tensor | None = None,
    snake: nn.Module | None = None,
    total: Tensor | None = None,
) -> Tensor:
    """x + bias of conv + residual, to `total` if given; returns its Snake or, without one, the sum itself."""
    out = torch.empty_like(x)
    bias = conv.bias if isinstance(conv, nn.Conv1d) else None
    alpha = snake.alpha if isinstance(snake, Snake) else None
    kept = out if alpha is None else total
    # Pointers disabled by a flag are never accessed; any tensor serves as a placeholder.
    snake_values[(triton.cdiv(x.numel(), _BLOCK),)](
        x, x if residual is None else residual, x if bias is None else bias, x if alpha is None else alpha,
        out if kept is None else kept, out, x.numel(), x.shape[2], CHANNELS=x.shape[1],
        HAS_BIAS=bias is not None, HAS_RESIDUAL=residual is not None, HAS_TOTAL=kept is not None,
        HAS_SNAKE=alpha is not None, BLOCK=_BLOCK,
    )  # fmt: skip
    return out
