"""A CUDA C++ kernel whose blocks wait for each other: compiled at run time, launched cooperatively.

In: source with its headers, tensors and numbers. Out: a launch on the current stream, which can be captured
in a CUDA graph. A cooperative launch starts only when all blocks fit on the device, so that two such kernels
never deadlock. Engine thread.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from engine_runtime.cuda.nvrtc import compile_program


class CooperativeKernel:
    """See the module docstring. Raises RuntimeError, ImportError or OSError if it cannot be compiled or
    loaded."""

    def __init__(
        self, source: str, headers: Mapping[str, str], name: str, shared_bytes: int, device: torch.device
    ) -> None:
        major, minor = torch.cuda.get_device_capability(device)
        program, _ = compile_program(source, f"sm_{major}{minor}", headers=headers)
        with torch.cuda.device(device):
            # NOTE: torch has no public API for this (as of 2.13).
            loaded: Any = torch.cuda._utils._cuda_load_module(program, [name])
            self._kernel = loaded[name]
            self._kernel.set_shared_memory_config(shared_bytes)
        self._driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        self._name, self._shared_bytes = name, shared_bytes

    def launch(self, blocks: int, threads: int, arguments: Sequence[Tensor | int]) -> None:
        """Launch on the current stream; a tensor is passed as its address, a number as an int."""
        values = [
            ctypes.c_void_p(value.data_ptr()) if isinstance(value, Tensor) else ctypes.c_int(value)
            for value in arguments
        ]
        pointers = (ctypes.c_void_p * len(values))(
            *(ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values)
        )
        stream = torch.cuda.current_stream()._as_parameter_
        sizes = (ctypes.c_uint(size) for size in (blocks, 1, 1, threads, 1, 1, self._shared_bytes))
        error = self._driver.cuLaunchCooperativeKernel(self._kernel.func, *sizes, stream, pointers)
        if error:
            raise RuntimeError(f"CUDA error {error} at the launch of {self._name}")
