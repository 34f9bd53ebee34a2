from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine_runtime import hardware
from engine_runtime.bundle.released.full_size import describe
from engine_runtime.cuda.driver import LARGE_SHARED_MEMORY
from engine_runtime.models.moss_lm import MossLMConfig
from tests.doubles.interpreted_triton import needs_triton


def test_the_header_of_a_report_names_what_times_depend_on() -> None:
    found = hardware.environment()
    assert found["torch"] == torch.__version__
    assert found["torch_threads"] == torch.get_num_threads()
    assert found["thread_waiting"]
    assert int(found["cores"]) >= 1
    assert found["device"] == "cpu"
    assert found["processor"]


@pytest.fixture
def _is_limited(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU of compute capability 9.0 on which the kernels of 8.9 are selected."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    hardware.limit_capability("8.9")
    yield
    hardware.limit_capability(None)


@pytest.mark.usefixtures("_is_limited")
def test_a_limit_lowers_the_capability_that_kernels_are_selected_for() -> None:
    gpu = torch.device("cuda")
    assert hardware.kernel_capability(gpu) == (8, 9)
    assert hardware.describe_capability(gpu) == "9.0, kernels of 8.9"
    hardware.limit_capability("12.0")
    assert hardware.kernel_capability(gpu) == (9, 0)
    assert hardware.describe_capability(gpu) == "9.0"
    hardware.limit_capability(None)
    assert hardware.kernel_capability(gpu) == (9, 0)
    assert hardware.kernel_capability(torch.device("cpu")) == (0, 0)


@pytest.mark.usefixtures("_is_limited")
@needs_triton
def test_a_limit_closes_every_kernel_that_needs_more(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine_runtime.cuda.kernels import pdl
    from engine_runtime.executors.cuda import (
        batched_linear,
        paged_attention,
        persistent_backend,
        residual_norm,
        skinny_gemm,
    )

    gpu = torch.device("cuda")
    properties = SimpleNamespace(shared_memory_per_block_optin=LARGE_SHARED_MEMORY, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(pdl, "_driver_version", lambda: 13000)
    config = MossLMConfig.from_dict(describe("moss-speech").lm.config)
    network: Any = SimpleNamespace(config=config)
    cache: Any = SimpleNamespace(
        pool=SimpleNamespace(device=gpu), trunk=torch.empty(0, dtype=torch.bfloat16), tokens_per_block=16
    )
    reasons = {
        "persistent": lambda: persistent_backend.unsupported_reason(network, cache),
        "attention": lambda: paged_attention.unsupported_reason(config, cache),
        "products": lambda: skinny_gemm.unsupported_reason(gpu, torch.bfloat16, has_pdl=True),
        "norms": lambda: residual_norm.unsupported_reason(gpu, config, torch.bfloat16),
    }
    assert all("compute capability 9.0" in str(reason()) for reason in reasons.values())
    assert pdl.pdl_launch_args(gpu) == {"USES_PDL": False}
    assert not batched_linear.is_large(gpu)
    hardware.limit_capability(None)
    assert [reasons[name]() for name in ("attention", "products", "norms")] == [None] * 3
    assert pdl.pdl_launch_args(gpu)["USES_PDL"]
    assert batched_linear.is_large(gpu)


ENGINE_TEST = """
from pathlib import Path

import torch

from engine_runtime import hardware
from engine_runtime.bundle.bundle import Bundle
from engine_runtime.engine import Engine
from engine_runtime.options import EngineOptions


def test_limit():
    torch.cuda.is_available = lambda: True  # also at the end, for the summary
    torch.cuda.get_device_name = lambda device: "Test GPU"
    torch.cuda.get_device_capability = lambda device: (9, 0)
    bundle, gpu = Bundle.open(Path(BUNDLE)), torch.device("cuda")
    for options, expected in ((EngineOptions(), (8, 9)), (EngineOptions(compute_capability="8.6"), (8, 6))):
        with Engine.load(bundle, options):
            assert hardware.kernel_capability(gpu) == expected
"""


@pytest.mark.slow
def test_a_limit_for_the_tests_holds_for_the_engines_that_they_load(
    random_bundle: Path, repository: Path, tmp_path: Path
) -> None:
    file = tmp_path / "test_limit.py"
    file.write_text(ENGINE_TEST.replace("BUNDLE", repr(str(random_bundle))))
    options = ["-q", "-p", "tests.conftest", "--compute-capability", "8.9", "--rootdir", str(repository)]
    command = [sys.executable, "-m", "pytest", *options, str(file)]
    ended = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
    assert "Test GPU, compute capability 9.0, kernels of 8.9\n" in ended.stdout


def test_kernels_are_selected_in_one_place(repository: Path) -> None:
    """Only compilers ask torch for the capability of a GPU, for their target: they do not see the limit."""
    code = (repository / "engine_runtime").rglob("*.py")
    asking = {file.name for file in code if "get_device_capability" in file.read_text("utf-8")}
    assert asking == {"hardware.py", "compiled_kernel.py", "engines.py"}


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


def test_the_header_names_driver_and_optional_libraries_that_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\n[ "$1" = --query-gpu=driver_version ] || exit 1\necho 580.95.05\n')
    program.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(program))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="a-b"))
    versions = {"numpy": "2.0", "triton": "3.6.0", "tensorrt-llm": "1.2.1"}

    def version(package: str) -> str:
        if package not in versions:
            raise metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(metadata, "version", version)
    found = hardware.environment("cuda", "bfloat16")
    assert (found["gpu"], found["driver"]) == ("NVIDIA H200", "580.95.05")
    assert (found["triton"], found["tensorrt-llm"]) == ("3.6.0", "1.2.1")
    assert "tensorrt-rtx" not in found
    assert "driver" not in hardware.environment("cpu")


def test_used_memory_is_that_of_the_driver_or_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (6, 24))
    assert hardware.used_memory(torch.device("cuda")) == 18
    before = hardware.used_memory(torch.device("cpu"))
    with mmap.mmap(-1, 50_000_000) as held:  # the heap might have as much that was freed
        held.write(b"x" * len(held))
        assert hardware.used_memory(torch.device("cpu")) - before > 0.5 * len(held)
