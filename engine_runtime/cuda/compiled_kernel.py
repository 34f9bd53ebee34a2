"""A CUDA C++ kernel: compiled at run time, launched on the current stream, also while a graph is captured.

In: source with its headers, tensors and numbers. Out: a launch. A cooperative launch starts only when all
blocks fit on the device, so that two kernels whose blocks wait for each other never deadlock. One that starts
early (programmatic dependent launch) runs beside the end of the kernel before it. The blocks of a cluster
reach each other's shared memory. Engine thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import torch
from torch import Tensor

from engine_runtime.cuda.driver import driver_library
from engine_runtime.cuda.nvrtc import compile_program

_COOPERATIVE, _CLUSTER_DIMENSION, _PROGRAMMATIC_STREAM_SERIALIZATION = 2, 4, 6
"""CUlaunchAttributeID"""


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute, whose value is a union of 64 bytes."""

    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("num_attributes", ctypes.c_uint),
    )


def kernel_files(folder: str, source: str) -> tuple[str, dict[str, str]]:
    """The text of a source file in this folder of cuda/kernels, and the headers of that folder and the common
    ones, by name."""
    kernels = resources.files("engine_runtime.cuda.kernels")
    files = [*kernels.joinpath("common").iterdir(), *kernels.joinpath(folder).iterdir()]
    headers = {file.name: file.read_text(encoding="utf-8") for file in files if file.name.endswith(".cuh")}
    return kernels.joinpath(folder, source).read_text(encoding="utf-8"), headers


def layout_header(constants: Mapping[str, int | str], *declarations: str) -> str:
    """Text of layout.cuh: the constants by name, and what is declared with them."""
    defines = [f"#define {name} {value}" for name, value in constants.items()]
    return "\n".join(["#pragma once", *defines, *declarations, ""])


class CompiledKernel:
    """Raises RuntimeError, ImportError or OSError if it cannot be compiled or
    loaded."""

    def __init__(
        self,
        source: str,
        headers: Mapping[str, str],
        name: str,
        shared_bytes: int,
        device: torch.device,
        *,
        is_architecture_specific: bool = False,
    ) -> None:
        """`is_architecture_specific`: it uses instructions of this compute capability alone (wgmma)."""
        major, minor = torch.cuda.get_device_capability(device)
        architecture = f"sm_{major}{minor}" + "a" * is_architecture_specific
        program, _ = compile_program(source, architecture, headers=headers)
        with torch.cuda.device(device):
            # NOTE: torch has no public API for this (as of 2.13).
            loaded: Any = torch.cuda._utils._cuda_load_module(program, [name])
            self._kernel = loaded[name]
            self._kernel.set_shared_memory_config(shared_bytes)
        self._driver = driver_library()
        self._name, self._shared_bytes = name, shared_bytes

    def num_resident_clusters(self, threads: int, cluster: int) -> int:
        """Clusters of so many blocks that the device can run at a time."""
        config = _Config(
            (cluster, 1, 1),
            (threads, 1, 1),
            self._shared_bytes,
            None,
            (_Attribute * 1)(_Attribute(_CLUSTER_DIMENSION, 0, (cluster, 1, 1))),
            1,
        )
        count = ctypes.c_int()
        error = self._driver.cuOccupancyMaxActiveClusters(
            ctypes.byref(count), ctypes.c_void_p(self._kernel.func.value), ctypes.byref(config)
        )
        if error:
            raise RuntimeError(f"CUDA error {error} at the number of clusters of {self._name}")
        return count.value

    def launch(
        self,
        blocks: int,
        threads: int,
        arguments: Sequence[Tensor | ctypes.Structure | int | None],
        *,
        cluster: int = 1,
        is_cooperative: bool = False,
        starts_early: bool = False,
    ) -> None:
        """Launch on the current stream; a tensor is passed as its address, None as a null pointer, a number
        as an int, a structure by value. `cluster`: blocks of a cluster, which divides `blocks`. See the
        module for the flags."""
        values = [_value(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(
            *(ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values)
        )
        wanted = ((_COOPERATIVE, is_cooperative), (_PROGRAMMATIC_STREAM_SERIALIZATION, starts_early))
        attributes = [_Attribute(kind, 0, (1,)) for kind, is_wanted in wanted if is_wanted]
        if cluster > 1:
            attributes.append(_Attribute(_CLUSTER_DIMENSION, 0, (cluster, 1, 1)))
        config = _Config(
            (blocks, 1, 1),
            (threads, 1, 1),
            self._shared_bytes,
            torch.cuda.current_stream()._as_parameter_,
            (_Attribute * len(attributes))(*attributes),
            len(attributes),
        )
        error = self._driver.cuLaunchKernelEx(
            ctypes.byref(config), ctypes.c_void_p(self._kernel.func.value), pointers, None
        )
        if error:
            raise RuntimeError(f"CUDA error {error} at the launch of {self._name}")


def _value(argument: Tensor | ctypes.Structure | int | None) -> Any:
    if argument is None or isinstance(argument, Tensor):
        return ctypes.c_void_p(None if argument is None else argument.data_ptr())
    return argument if isinstance(argument, ctypes.Structure) else ctypes.c_int(argument)
