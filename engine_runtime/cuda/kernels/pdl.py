"""Kernels that are launched while the one before them still runs (programmatic dependent launch).

In: nothing. Out: arguments for the launch, and what such a kernel does before it reads what others wrote:
until then it may load weights, and nothing else. For chains of thousands of small kernels, of whose time a
fourth is the way from the end of one to the beginning of the next. Where reading weights is most of the work,
it is slower: what waits takes room from what runs.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_OLDEST_DRIVER = 12030
"""CUDA version of the first driver that captures such launches in a graph."""


@triton.jit
def pdl_wait(USES_PDL: tl.constexpr):
    """Wait for all that earlier kernels wrote; from here on the next one may begin."""
    if USES_PDL:
        gdc_wait()
        gdc_launch_dependents()


@cache
def pdl_launch_args(device: torch.device) -> dict[str, bool]:
    """Arguments with which a kernel that calls `pdl_wait` is launched on a device."""
    uses_pdl = (
        device.type == "cuda"
        and torch.cuda.get_device_capability(device) >= (9, 0)
        and _driver_version() >= _OLDEST_DRIVER
    )
    return {"USES_PDL": True, "launch_pdl": True} if uses_pdl else {"USES_PDL": False}


def _driver_version() -> int:
    """CUDA version of the driver, 12030 for 12.3; 0 if it does not say. For Linux, as Triton is."""
    version = ctypes.c_int(0)
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except OSError:
        return 0
    return version.value
