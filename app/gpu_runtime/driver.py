"""What this machine has for a GPU beside torch: the NVIDIA driver, and a C compiler. Any thread."""

from __future__ import annotations

import ctypes

from engine_runtime.installation import COMPILER_REMEDY, has_compiler


def driver_cuda(library: str = "libcuda.so.1") -> tuple[int, int] | None:
    """The newest CUDA version that the driver runs; None without a driver."""
    version = ctypes.c_int()
    try:
        if ctypes.CDLL(library).cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return version.value // 1000, version.value % 1000 // 10


def compiler_advice() -> str:
    """What to install where Triton would find no C compiler, with which it builds what starts its kernels;
    "" if there is one."""
    if has_compiler():
        return ""
    return (
        "There is no C compiler, without which the GPU is several times slower and has no quantized weights. "
        f"{COMPILER_REMEDY}"
    )
