"""Memory as seen by an engine: addresses and their allocations.

Without a GPU, device and host are the same memory. So every live allocation is recorded with its kind, and an
address can be checked.
"""

from __future__ import annotations

import ctypes
import weakref
from math import prod

import numpy as np
import torch
from torch import Tensor

from engine_runtime.tensorrt.llm.session import Memory

ALIGNMENT = 256


class KnownMemory(Memory):
    """Records live allocations. On a GPU only registered tensors (`know`) and its own."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(torch.device(device))
        self._live: dict[int, tuple[int, str]] = {}

    def on_device(self, size: int) -> Tensor:
        return self._allocate(size, "device")

    def on_host(self, size: int) -> Tensor:
        return self._allocate(size, "host")

    def know(self, tensor: Tensor, kind: str) -> None:
        """A tensor that was allocated elsewhere, and is known until something else has its memory."""
        self._record(tensor.data_ptr(), tensor.numel() * tensor.element_size(), kind)

    def confuse(self, address: int) -> None:
        """Take the allocation at `address` for one of the other kind."""
        ((start, (size, kind)),) = self._around(address)
        self._live[start] = (size, "host" if kind == "device" else "device")

    def room(self, address: int) -> int:
        """Bytes from `address` to the end of its allocation; 0 if there is none."""
        return next((start + size - address for start, (size, _) in self._around(address)), 0)

    def fault(self, address: int, size: int, kind: str) -> str | None:
        """The error of an access to `size` bytes of `kind` at `address`, None if it is valid."""
        for start, (length, found) in self._around(address):
            if found != kind:
                return f"is on the {found}, not on the {kind}"
            if address + size > start + length:
                return f"has {start + length - address} bytes where {size} are needed"
            if kind == "device" and address % ALIGNMENT:
                return f"is no multiple of {ALIGNMENT}"
            return None
        return "points to nothing that lives"

    def _around(self, address: int) -> list[tuple[int, tuple[int, str]]]:
        return [(start, entry) for start, entry in self._live.items() if start <= address < start + entry[0]]

    def _allocate(self, size: int, kind: str) -> Tensor:
        if self.device.type == "cuda":
            tensor = super().on_device(size) if kind == "device" else super().on_host(size)
            self.know(tensor, kind)
            return tensor
        block = np.zeros(size + ALIGNMENT, dtype=np.uint8)
        start = -block.ctypes.data % ALIGNMENT
        address = block.ctypes.data + start
        self._record(address, size, kind)
        weakref.finalize(block, self._live.pop, address, None)
        return torch.from_numpy(block)[start : start + size]

    def _record(self, address: int, size: int, kind: str) -> None:
        """What was there before is not alive any more."""
        for start, (length, _) in list(self._live.items()):
            if start < address + size and address < start + length:
                del self._live[start]
        self._live[address] = (size, kind)


class _OnDevice:
    """A view for torch of this many bytes at a GPU address."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def look_at(address: int, shape: tuple[int, ...], dtype: torch.dtype, device: str = "cpu") -> Tensor:
    """The tensor at an address, without a copy or a reference."""
    size = prod(shape) * dtype.itemsize
    if device != "cpu":
        return torch.as_tensor(_OnDevice(address, size), device=device).view(dtype).view(shape)
    buffer = (ctypes.c_char * size).from_address(address)
    return torch.frombuffer(buffer, dtype=dtype).view(shape)
