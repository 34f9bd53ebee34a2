"""Tensor maps: how the bulk copies of a kernel in CUDA C++ (TMA) see a tensor.

In: a tensor in device memory, the sizes and strides of a view of it, the box that one copy takes. Out: the
CUtensorMap, which is passed to a kernel by value. The innermost dimension of a box is 128 bytes; in shared
memory its rows may be swizzled in groups of eight, as wgmma reads them. Positions outside the view read as 0.
Needs compute capability 9.0. Engine thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from engine_runtime.cuda.driver import driver_library
from engine_runtime.quantization import FP8

ROW_BYTES = 128
"""Bytes of the innermost dimension of a box."""
_BYTES = 128
_ALIGNMENT = 64
_DATA_TYPES = {FP8: 0, torch.float16: 6, torch.bfloat16: 9}
"""CUtensorMapDataType; bytes are copied as they are."""
_NO_INTERLEAVE, _NO_SWIZZLE, _SWIZZLE_128B, _FILL_ZEROS = 0, 0, 3, 0


class TensorMap(ctypes.Structure):
    """A CUtensorMap."""

    _fields_ = (("words", ctypes.c_uint64 * 16),)


def tensor_map(
    tensor: Tensor,
    sizes: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    *,
    l2_bytes: int = 128,
    is_swizzled: bool = True,
) -> TensorMap:
    """The map of a view of `tensor`, innermost dimension first.

    Args:
        sizes, box: of each dimension, in elements.
        strides: of each dimension but the innermost, in elements; multiples of 16 bytes.
        l2_bytes: what a copy brings into the L2 cache at a time, 128 or 256.

    Raises:
        RuntimeError: the driver refuses it.
    """
    rank, element = len(sizes), tensor.element_size()
    room = (ctypes.c_char * (_BYTES + _ALIGNMENT))()
    at = ctypes.addressof(room) + -ctypes.addressof(room) % _ALIGNMENT
    error = driver_library().cuTensorMapEncodeTiled(
        ctypes.c_void_p(at),
        _DATA_TYPES[tensor.dtype],
        rank,
        ctypes.c_void_p(tensor.data_ptr()),
        (ctypes.c_uint64 * rank)(*sizes),
        (ctypes.c_uint64 * (rank - 1))(*(stride * element for stride in strides)),
        (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        _NO_INTERLEAVE,
        _SWIZZLE_128B if is_swizzled else _NO_SWIZZLE,
        3 if l2_bytes == 256 else 2,
        _FILL_ZEROS,
    )
    if error:
        raise RuntimeError(f"CUDA error {error} at a tensor map of {list(sizes)} with boxes of {list(box)}")
    return TensorMap.from_buffer_copy(ctypes.string_at(at, _BYTES))
