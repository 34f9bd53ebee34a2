"""The CUDA driver: its library, for calls that torch does not offer, and the shared memory of a block.

In: a device. Out: the library, bytes. Loading fails with OSError where there is no driver. Engine thread.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

import torch

LARGE_SHARED_MEMORY = 227 << 10
"""Bytes that a block can have on GPUs for data centers, from compute capability 9.0 on."""


@cache
def driver_library() -> Any:
    """The driver, loaded once. Raises OSError if there is none."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def shared_memory_limit(device: torch.device) -> int:
    """Shared memory that a block can have, in bytes."""
    properties: Any = torch.cuda.get_device_properties(device)  # the type stubs lack this attribute
    return int(properties.shared_memory_per_block_optin)
