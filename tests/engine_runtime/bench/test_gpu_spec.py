from __future__ import annotations

import pytest

from engine_runtime.bench.gpu_spec import GPU_SPECS, spec_of_device


@pytest.mark.parametrize(
    ("device_name", "name"),
    [
        ("NVIDIA GeForce RTX 4090", "4090"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
    ],
)
def test_a_gpu_is_known_by_the_name_of_its_driver(device_name: str, name: str) -> None:
    assert spec_of_device(device_name) is GPU_SPECS[name]


@pytest.mark.parametrize(
    "device_name", ["NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA A100-SXM4-40GB", "NVIDIA A10G", "AMD EPYC"]
)
def test_another_model_of_the_name_is_another_gpu(device_name: str) -> None:
    assert spec_of_device(device_name) is None


def test_the_sheets_agree_with_what_is_known_of_the_chips() -> None:
    ada = GPU_SPECS["4090"]
    # 128 multiprocessors x 128 lanes x 2 operations x 2.52 GHz, and 384 bits x 21 Gbit/s.
    assert ada.fp32 == pytest.approx(128 * 128 * 2 * 2.52e9, rel=1e-3)
    assert ada.bandwidth == pytest.approx(384 / 8 * 21e9, rel=1e-3)
    for spec in GPU_SPECS.values():
        assert spec.fp32 < spec.bf16 < (spec.fp8 or float("inf"))
        assert (spec.fp8 is None) == (spec.capability < (8, 9))
        assert spec.memory_bytes / spec.bandwidth < 0.1  # seconds
