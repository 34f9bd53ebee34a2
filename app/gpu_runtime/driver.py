"""The NVIDIA driver of this machine. Any thread."""

from __future__ import annotations

import ctypes


def driver_cuda(library: str = "libcuda.so.1") -> tuple[int, int] | None:
    """The newest CUDA version that the driver runs; None without a driver."""
    version = ctypes.c_int()
    try:
        if ctypes.CDLL(library).cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return version.value // 1000, version.value % 1000 // 10
