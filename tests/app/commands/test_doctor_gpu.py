"""The GPU runtime in `moss-voice doctor`; the other checks about GPUs are tested with the whole command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from app import paths
from app.cli import build_parser
from app.commands import doctor
from app.gpu_runtime import status
from app.gpu_runtime.lock import read_lock
from app.gpu_runtime.store import RuntimeRecord, RuntimeStore
from engine_runtime import hardware
from engine_runtime.cuda import availability
from engine_runtime.tensorrt.llm import library


@pytest.fixture
def packaged(monkeypatch: pytest.MonkeyPatch) -> RuntimeStore:
    """A packaged program with torch for the processor, as far as the GPU runtime goes."""
    monkeypatch.setattr(doctor, "is_frozen", lambda: True)
    monkeypatch.setattr(status, "refuse_elsewhere", lambda: None)
    return RuntimeStore(paths.gpu_runtime_dir())


def test_a_packaged_program_shows_its_gpu_runtime(packaged: RuntimeStore) -> None:
    assert list(doctor.gpu_runtime()) == []  # what the GPU line says is enough
    key = read_lock().key
    packaged.folder(key).mkdir(parents=True)
    packaged.write_record(key, RuntimeRecord("state", "2.13.0+cu130 (CUDA 13.0)", ("cuda:0 Test GPU",)))
    (finding,) = doctor.gpu_runtime()
    assert finding.status == "ok"
    assert "cuda:0 Test GPU" in finding.detail
    packaged.write_record(key, RuntimeRecord("state", failure="its test ended with SIGSEGV"))
    (finding,) = doctor.gpu_runtime()
    assert finding.status == "note"
    assert "SIGSEGV" in finding.detail


def test_the_kernels_of_a_gpu_are_named_with_what_slows_them_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "accelerators", lambda: ["cuda:0 Test GPU, 24 GiB, sm_89"])
    monkeypatch.setattr(hardware, "usable_device", torch.device)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    monkeypatch.setattr(availability, "why_no_triton", lambda device: None)
    device, kernels = doctor.gpu()
    assert device.detail == "cuda:0 Test GPU, 24 GiB, sm_89"
    assert kernels.status == "ok"
    assert kernels.detail.startswith("cuda:0: Triton kernels (the persistent and batched kernels in CUDA C++")
    monkeypatch.setattr(availability, "why_no_triton", lambda device: availability.NO_COMPILER)
    _, kernels = doctor.gpu()
    assert kernels.status == "note"
    assert "plain torch" in kernels.detail
    assert availability.NO_COMPILER in kernels.detail
    assert "apt-get install gcc libc6-dev" in kernels.what_to_do


def test_elsewhere_there_is_no_gpu_runtime_to_show() -> None:
    assert list(doctor.gpu_runtime()) == []


def test_a_package_that_needs_no_gpu_runtime_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "is_frozen", lambda: True)
    (finding,) = doctor.gpu_runtime()
    assert finding.status == "note"
    assert "for the packaged program" in finding.detail


def test_tensorrt_llm_is_not_missed_in_a_packaged_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "is_frozen", lambda: True)
    (finding,) = doctor.tensorrt_llm()
    assert finding.detail.startswith("not in the packaged program")
    assert "packaging/TENSORRT.md" in finding.what_to_do
    (command,) = re.findall(r"moss-voice (.*?) \(", finding.what_to_do)
    arguments = build_parser().parse_args(command.split())
    assert arguments.engine_python == Path("ENV/bin/python")


@pytest.mark.parametrize(("version", "status"), [("1.2.1", "ok"), ("1.1.0", "note"), ("1.4.0rc1", "note")])
def test_a_version_of_tensorrt_llm_that_cannot_be_used_is_not_called_ok(
    monkeypatch: pytest.MonkeyPatch, version: str, status: str
) -> None:
    monkeypatch.setattr(library, "installed_version", lambda package: version)
    monkeypatch.setattr(library, "clashes", list)
    found = next(doctor.tensorrt_llm())
    assert found.status == status
    assert version in found.detail
    assert ("packaging/TENSORRT.md" in found.what_to_do) == (status == "note")
