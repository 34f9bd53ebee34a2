"""Kernels in CUDA C++: their files, and what the driver gets at a launch, without a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine_runtime.cuda import compiled_kernel
from engine_runtime.cuda.compiled_kernel import CompiledKernel, _Attribute, _Config, kernel_files

STREAM, FUNCTION, SHARED_BYTES = 0x5000, 0x6000, 2048
COOPERATIVE, CLUSTER_OF_4, STARTS_EARLY = (2, 1, 0, 0), (4, 4, 1, 1), (6, 1, 0, 0)
"""CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .._CLUSTER_DIMENSION and .._PROGRAMMATIC_STREAM_SERIALIZATION with their
values."""
ATTENTION = {"cluster.cuh", "plain_tile.cuh", "swizzled_tile.cuh", "unit.cuh", "warp_sums.cuh"}


@pytest.mark.parametrize(
    ("folder", "name", "own"),
    [
        ("persistent_decode", "step.cu", {"attention.cuh", "base.cuh", "linear.cuh"}),
        ("paged_attention", "attend.cu", ATTENTION),
        ("paged_attention", "plan.cu", ATTENTION),
        ("skinny_gemm", "gemm.cu", {"wgmma.cuh"}),
        ("residual_norm", "add.cu", {"bf16x4.cuh"}),
        ("residual_norm", "add_scaled.cu", {"bf16x4.cuh"}),
    ],
)
def test_a_source_comes_with_its_headers_and_the_common_ones(folder: str, name: str, own: set[str]) -> None:
    source, headers = kernel_files(folder, name)
    assert 'extern "C" __global__' in source
    assert set(headers) == own | {"primitives.cuh", "attend_tile.cuh", "tensor_copy.cuh"}
    assert all(text.count("#pragma once") == 1 for text in headers.values())


def test_structures_are_those_of_the_driver() -> None:
    """Sizes and offsets of cuda.h, on 64 bits."""
    assert ctypes.sizeof(_Attribute) == 72
    assert _Attribute.value.offset == 8
    assert ctypes.sizeof(_Config) == 56
    offsets = [getattr(_Config, name).offset for name, _ in _Config._fields_]
    assert offsets == [0, 12, 24, 32, 40, 48]


class FakeDriver:
    """Reads a launch as the driver would, with one pointer and one number as arguments."""

    def __init__(self) -> None:
        self.error = 0
        self.config = _Config()
        self.attributes: list[tuple[int, ...]] = []
        self.arguments: tuple[int, int] = (0, 0)
        self.function = 0

    def cuLaunchKernelEx(self, config: Any, function: Any, arguments: Any, extra: None) -> int:
        self.config, self.function = config._obj, function.value
        given = self.config.attributes[: self.config.num_attributes]
        self.attributes = [(attribute.id, *attribute.value[:3]) for attribute in given]
        pointer, number = arguments
        self.arguments = (
            ctypes.c_uint64.from_address(pointer).value,
            ctypes.c_int.from_address(number).value,
        )
        return self.error

    def cuOccupancyMaxActiveClusters(self, count: Any, function: Any, config: Any) -> int:
        self.config, self.function = config._obj, function.value
        given = self.config.attributes[: self.config.num_attributes]
        self.attributes = [(attribute.id, *attribute.value[:3]) for attribute in given]
        count._obj.value = 33
        return self.error


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    driver = FakeDriver()
    monkeypatch.setattr(compiled_kernel, "driver_library", lambda: driver)
    stream = SimpleNamespace(_as_parameter_=ctypes.c_void_p(STREAM))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    return driver


def make_kernel(monkeypatch: pytest.MonkeyPatch, **choices: bool) -> tuple[CompiledKernel, dict[str, Any]]:
    """A kernel, and what it was compiled and loaded with."""
    seen: dict[str, Any] = {}

    def compile_program(source: str, architecture: str, *, headers: Mapping[str, str]) -> tuple[bytes, str]:
        seen.update(source=source, architecture=architecture, headers=headers)
        return b"cubin", ""

    def load(program: bytes, names: list[str]) -> dict[str, Any]:
        seen.update(program=program)
        kernel = SimpleNamespace(
            func=ctypes.c_void_p(FUNCTION),
            set_shared_memory_config=lambda shared_bytes: seen.update(shared_bytes=shared_bytes),
        )
        return dict.fromkeys(names, kernel)

    monkeypatch.setattr(compiled_kernel, "compile_program", compile_program)
    monkeypatch.setattr(torch.cuda._utils, "_cuda_load_module", load)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    kernel = CompiledKernel("text", {"a.cuh": "b"}, "name", SHARED_BYTES, torch.device("cuda"), **choices)
    return kernel, seen


@pytest.mark.usefixtures("driver")
def test_it_is_compiled_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    _, seen = make_kernel(monkeypatch)
    assert seen == {
        "source": "text",
        "architecture": "sm_90",
        "headers": {"a.cuh": "b"},
        "program": b"cubin",
        "shared_bytes": SHARED_BYTES,
    }


@pytest.mark.usefixtures("driver")
def test_instructions_of_one_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    _, seen = make_kernel(monkeypatch, is_architecture_specific=True)
    assert seen["architecture"] == "sm_90a"


def test_a_structure_is_passed_by_value(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pair(ctypes.Structure):
        _fields_ = (("first", ctypes.c_uint64),)

    kernel, _ = make_kernel(monkeypatch)
    kernel.launch(1, 32, [Pair(41), 3])
    assert driver.arguments == (41, 3)


def test_no_tensor_is_a_null_pointer(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, _ = make_kernel(monkeypatch)
    kernel.launch(1, 32, [None, 3])
    assert driver.arguments == (0, 3)


@pytest.mark.parametrize(
    ("flags", "attributes"),
    [
        ({}, []),
        ({"is_cooperative": True}, [COOPERATIVE]),
        ({"starts_early": True}, [STARTS_EARLY]),
        ({"is_cooperative": True, "starts_early": True}, [COOPERATIVE, STARTS_EARLY]),
        ({"cluster": 4, "starts_early": True}, [STARTS_EARLY, CLUSTER_OF_4]),
    ],
)
def test_what_the_driver_gets(
    flags: dict[str, Any],
    attributes: list[tuple[int, ...]],
    driver: FakeDriver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel, _ = make_kernel(monkeypatch)
    tensor = torch.zeros(3)
    kernel.launch(7, 288, [tensor, -5], **flags)
    config = driver.config
    assert (list(config.grid), list(config.block)) == ([7, 1, 1], [288, 1, 1])
    assert (config.shared_bytes, config.stream, driver.function) == (SHARED_BYTES, STREAM, FUNCTION)
    assert driver.attributes == attributes
    assert driver.arguments == (tensor.data_ptr(), -5)


def test_an_error_of_the_driver_is_raised_with_its_number(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, _ = make_kernel(monkeypatch)
    driver.error = 719
    with pytest.raises(RuntimeError, match="CUDA error 719 at the launch of name"):
        kernel.launch(1, 32, [torch.zeros(1), 0])


def test_clusters_that_run_at_a_time(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, _ = make_kernel(monkeypatch)
    assert kernel.num_resident_clusters(288, 4) == 33
    config = driver.config
    assert (list(config.grid), list(config.block)) == ([4, 1, 1], [288, 1, 1])
    assert (config.shared_bytes, driver.function) == (SHARED_BYTES, FUNCTION)
    assert driver.attributes == [CLUSTER_OF_4]
    driver.error = 1
    with pytest.raises(RuntimeError, match="CUDA error 1 at the number of clusters of name"):
        kernel.num_resident_clusters(288, 4)
