from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.gpu_runtime import trial
from app.gpu_runtime.lock import GpuRuntimeError
from app.gpu_runtime.store import fingerprint
from tests.factories.gpu_wheels import TORCH, WITH_GPU


def _runtime(folder: Path, torch: str) -> Path:
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(torch)
    return folder


@pytest.mark.slow
def test_a_runtime_that_works_gets_a_record(tmp_path: Path) -> None:
    folder = _runtime(tmp_path, TORCH + WITH_GPU)
    record = trial.try_out(folder, needs_gpu=True)
    assert record.torch == "2.13.0+cu130 (CUDA 13.0)"
    assert record.devices == ("cuda:0 Test GPU, 24 GiB, sm_89",)
    assert record.no_triton  # the stand-in has nothing that Triton could use
    assert record.failure == ""
    assert record.state == fingerprint(folder)
    assert list(folder.glob("torch/__pycache__/*.pyc"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("torch", "reason"),
    [
        (
            "raise ImportError('libcudart.so.13: cannot open shared object file')",
            "ImportError: libcudart.so.13",
        ),
        ("import os; os.abort()", "ended with SIGABRT"),
        ("import os; os._exit(3)", "ended with status 3"),
        (TORCH.replace("self.values @ other", "self.values + other"), "a product on cpu is wrong"),
        ("import os; os._exit(0)", "ended without a result"),
    ],
)
def test_a_runtime_that_is_broken_is_refused_with_the_reason(tmp_path: Path, torch: str, reason: str) -> None:
    with pytest.raises(GpuRuntimeError, match=reason):
        trial.try_out(_runtime(tmp_path, torch), needs_gpu=False)


@pytest.mark.slow
def test_without_a_gpu_it_passes_only_where_none_is_needed(tmp_path: Path) -> None:
    folder = _runtime(tmp_path, TORCH)
    assert trial.try_out(folder, needs_gpu=False).devices == ()
    with pytest.raises(GpuRuntimeError, match=r"cannot use the GPU \(no GPU found\)"):
        trial.try_out(folder, needs_gpu=True)


@pytest.mark.slow
def test_a_test_that_does_not_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "TIMEOUT_S", 0.2)
    run = subprocess.run

    def wait(command: list[str], **options: Any) -> Any:
        return run(["sleep", "60"], **options)

    monkeypatch.setattr(subprocess, "run", wait)
    with pytest.raises(GpuRuntimeError, match="did not end"):
        trial.try_out(tmp_path, needs_gpu=False)


def test_the_child_does_not_use_the_runtime_that_is_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        seen.update(options, command=command)
        return subprocess.CompletedProcess(command, 1, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(GpuRuntimeError, match="status 1"):
        trial.try_out(tmp_path, needs_gpu=False)
    assert seen["env"][trial.VARIABLE] == "off"
    assert seen["command"][0] == sys.executable
