"""Programmatic dependent launch (PDL) for chains of small kernels.

Provides launch arguments and the device-side wait. Before `pdl_wait` a kernel may load weights only, no
results of earlier kernels. Useful for chains of thousands of small kernels, where a quarter of the time is
the gap between the end of one and the start of the next. Slower where reading weights dominates: waiting
programs occupy resources of running ones.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engine_runtime.cuda.driver import driver_library
from engine_runtime.hardware import kernel_capability

_OLDEST_DRIVER = 12030
"""CUDA version of the first driver that captures PDL launches in a graph."""


@triton.jit
def pdl_wait(USES_PDL: tl.constexpr, STARTS_NEXT: tl.constexpr = True):
    """Wait for the results of earlier kernels; if STARTS_NEXT, allow the next kernel to start."""
    if USES_PDL:
        gdc_wait()
    pdl_start_next(USES_PDL and STARTS_NEXT)


@triton.jit
def pdl_start_next(USES_PDL: tl.constexpr):
    """Allow the next kernel to start. It starts when all programs have called this or ended."""
    if USES_PDL:
        gdc_launch_dependents()


def pdl_launch_args(device: torch.device) -> dict[str, bool]:
    """Launch arguments, on a device, of a kernel that calls `pdl_wait`."""
    uses_pdl = kernel_capability(device) >= (9, 0) and _driver_version() >= _OLDEST_DRIVER
    return {"USES_PDL": True, "launch_pdl": True} if uses_pdl else {"USES_PDL": False}


@cache
def _driver_version() -> int:
    """CUDA version of the driver, 12030 for 12.3; 0 if unknown."""
    version = ctypes.c_int(0)
    try:
        driver_library().cuDriverGetVersion(ctypes.byref(version))
    except OSError:
        return 0
    return version.value
