from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine_runtime import hardware


def test_the_header_of_a_report_names_what_times_depend_on() -> None:
    found = hardware.environment()
    assert found["torch"] == torch.__version__
    assert found["torch_threads"] == torch.get_num_threads()
    assert found["thread_waiting"]
    assert int(found["cores"]) >= 1
    assert found["device"] == "cpu"
    assert found["processor"]


def test_the_load_of_others_is_measured() -> None:
    assert 0.0 <= hardware.load_of_others(0.05) <= (os.cpu_count() or 1)


def test_accelerators_are_those_that_torch_can_use() -> None:
    assert len(hardware.accelerators()) == torch.cuda.device_count()


def test_only_usable_devices_are_given() -> None:
    assert hardware.usable_device("cpu") == torch.device("cpu")
    with pytest.raises(hardware.AcceleratorError, match="Use --device cpu"):
        hardware.usable_device("cuda:77")
    for name in ("meta", "mps", "cpu:1", "cuda:-1", "cuda:99999999999", "CPU", "", "quantum"):
        with pytest.raises(hardware.AcceleratorError, match="is not a device"):
            hardware.usable_device(name)
    with pytest.raises(hardware.AcceleratorError, match="'abacus' is not a device"):
        hardware.usable_device("abacus")


def test_the_build_of_torch_is_named() -> None:
    assert torch.__version__ in hardware.torch_build()
    assert ("CUDA" in hardware.torch_build()) == (torch.version.cuda is not None)


@pytest.mark.skipif(os.name == "nt", reason="a shell script replaces the program of the driver")
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            "echo '1980, 3201, 41, 118.52'",
            {"sm_mhz": 1980.0, "memory_mhz": 3201.0, "temperature_c": 41.0, "power_w": 118.52},
        ),
        ("echo '1980, 3201, 41, [N/A]'", {}),
        ("echo '1980'", {}),
        ("exit 9", {}),
    ],
)
def test_clocks_are_those_that_the_driver_reports(
    answer: str, expected: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ "$3" = --id=GPU-a-b ] || exit 1\n{answer}\n')
    program.chmod(0o755)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="a-b"))
    monkeypatch.setattr(shutil, "which", lambda name: str(program))
    assert hardware.gpu_clocks(torch.device("cuda")) == expected
    assert hardware.gpu_clocks(torch.device("cpu")) == {}
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert hardware.gpu_clocks(torch.device("cuda")) == {}
