"""Tensor maps: what the driver gets, without a GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from engine_runtime.cuda import tensor_map as module
from engine_runtime.cuda.tensor_map import TensorMap, tensor_map
from engine_runtime.quantization import FP8


class FakeDriver:
    """Reads the arguments as the driver would, and fills the map."""

    def __init__(self) -> None:
        self.error = 0
        self.given: dict[str, Any] = {}

    def cuTensorMapEncodeTiled(self, to: Any, dtype: int, rank: int, address: Any, *rest: Any) -> int:
        sizes, strides, box, steps, interleave, swizzle, promotion, fill = rest
        assert to.value % 64 == 0
        self.given = {
            "dtype": dtype,
            "rank": rank,
            "address": address.value,
            "sizes": list(sizes),
            "strides": list(strides),
            "box": list(box),
            "steps": list(steps),
            "modes": (interleave, swizzle, promotion, fill),
        }
        ctypes.memset(to.value, 7, 128)
        return self.error


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    driver = FakeDriver()
    monkeypatch.setattr(module, "driver_library", lambda: driver)
    return driver


def test_a_view_is_described_in_bytes(driver: FakeDriver) -> None:
    tensor = torch.zeros(12, 64, dtype=torch.bfloat16)
    made = tensor_map(tensor, [64, 4, 3], [64, 256], [64, 4, 2], l2_bytes=256)
    assert isinstance(made, TensorMap)
    assert bytes(made) == b"\x07" * 128
    assert driver.given == {
        "dtype": 9,
        "rank": 3,
        "address": tensor.data_ptr(),
        "sizes": [64, 4, 3],
        "strides": [128, 512],
        "box": [64, 4, 2],
        "steps": [1, 1, 1],
        "modes": (0, 3, 3, 0),  # no interleave, 128-byte swizzle, 256 bytes into L2, zeros outside
    }


def test_rows_that_are_not_swizzled(driver: FakeDriver) -> None:
    tensor_map(torch.zeros(2, 128).to(FP8), [128, 2], [128], [128, 2], is_swizzled=False)
    assert driver.given["modes"] == (0, 0, 2, 0)


@pytest.mark.parametrize(("dtype", "number"), [(torch.float16, 6), (torch.bfloat16, 9), (FP8, 0)])
def test_types_are_those_of_the_driver(dtype: torch.dtype, number: int, driver: FakeDriver) -> None:
    tensor_map(torch.zeros(2, 128).to(dtype), [128, 2], [128], [64, 2])
    assert driver.given["dtype"] == number
    assert driver.given["modes"][2] == 2  # 128 bytes


def test_a_refusal_names_sizes_and_box(driver: FakeDriver) -> None:
    driver.error = 1
    with pytest.raises(
        RuntimeError, match=r"CUDA error 1 at a tensor map of \[64, 2\] with boxes of \[64, 1\]"
    ):
        tensor_map(torch.zeros(2, 64, dtype=torch.float16), [64, 2], [64], [64, 1])
