"""Copies from host to device that the host does not wait for.

In: a tensor in host memory. Out: the same values in pinned memory. From pageable memory a copy of more than
64 KB first waits for everything that its stream still computes, and the thread with it. Any thread.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pinned(values: Tensor, device: torch.device) -> Tensor:
    """`values`, to be copied to `device` with `non_blocking=True`: in pinned memory, if they are in host
    memory and the device is a GPU. It is kept until the copy has ended, and then reused."""
    return values.pin_memory() if device.type == "cuda" and values.device.type == "cpu" else values


def sent(values: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """`values` on `device`, in another dtype if one is given."""
    return pinned(values, device).to(device, dtype, non_blocking=True)
