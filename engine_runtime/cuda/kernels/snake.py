"""The operations between two convolutions of HiFT, in one pass over memory.

In: the result of a convolution without its bias. Out: the residual sum, or its Snake activation, or both.
"""

from __future__ import annotations

import triton
import triton.language as tl


# Specializing on `size` is useful: its divisibility determines the load width, and the channels divide it.
@triton.jit(do_not_specialize=["length"])
def snake_values(x, residual, bias, alpha, total_out, out, size, length, CHANNELS: tl.constexpr,
                 HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_TOTAL: tl.constexpr,
                 HAS_SNAKE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Grid (tiles of size). x [batch, CHANNELS, length] of `size` values, likewise residual. total_out = x +
    bias [CHANNELS] + residual; out = total + sin(alpha total)^2 / alpha, alpha [CHANNELS]."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    channel = (at // length) % CHANNELS
    total = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        total += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_TOTAL:
        tl.store(total_out + at, total.to(total_out.dtype.element_ty), mask=inside)
    if HAS_SNAKE:
        rate = tl.load(alpha + channel, mask=inside, other=1.0).to(tl.float32)
        wave = tl.sin(total * rate)
        tl.store(out + at, (total + wave * wave / (rate + 1e-9)).to(out.dtype.element_ty), mask=inside)
