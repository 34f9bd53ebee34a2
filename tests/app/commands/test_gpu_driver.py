"""What nvidia-smi and nvcc print, as named fields. Programs of a shell stand for both."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.commands.gpu_driver import DriverGPU, cuda_compiler, cuda_of_driver, driver_gpus, driver_lines


@pytest.fixture(autouse=True)
def no_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def install(folder: Path, name: str, script: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_each_gpu_has_its_fields(tmp_path: Path) -> None:
    install(
        tmp_path,
        "nvidia-smi",
        'echo "NVIDIA GeForce RTX 4090, 580.82.07, 24564, 8.9, 450.00"\n'
        'echo "NVIDIA A10, 580.82.07, [N/A], 8.6, [Not Supported]"',
    )
    assert driver_gpus() == [
        DriverGPU("NVIDIA GeForce RTX 4090", "580.82.07", 24564.0, "8.9", 450.0),
        DriverGPU("NVIDIA A10", "580.82.07", None, "8.6", None),
    ]


def test_a_driver_that_does_not_answer_has_no_gpu(tmp_path: Path) -> None:
    install(tmp_path, "nvidia-smi", 'echo "NVIDIA-SMI has failed because it could not reach the driver."')
    assert driver_gpus() == []
    assert cuda_of_driver() is None


def test_versions_of_cuda(tmp_path: Path) -> None:
    install(tmp_path, "nvidia-smi", 'echo "| NVIDIA-SMI 580.82  CUDA Version: 13.0 |"')
    install(tmp_path, "nvcc", 'echo "Cuda compilation tools, release 12.4, V12.4.131"')
    assert (cuda_of_driver(), cuda_compiler()) == ("13.0", "12.4")


def test_without_the_tools_there_is_nothing_to_report() -> None:
    assert (driver_gpus(), cuda_of_driver(), cuda_compiler()) == (None, None, None)
    assert list(driver_lines()) == ["no nvidia-smi", "no nvcc"]
