"""The trial of a GPU runtime, with the torch of this environment; broken ones are tested through
tests/app/gpu_runtime/test_trial.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine_runtime import hardware

SITE = Path(torch.__file__).parents[1]


def _run(folder: Path, repository: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "engine_runtime.cuda.runtime_trial", str(folder)]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_torch_of_a_folder_is_described(repository: Path) -> None:
    child = _run(SITE, repository)
    assert child.returncode == 0, child.stderr
    found = json.loads(child.stdout.splitlines()[-1])
    assert found["torch"] == hardware.torch_build()
    assert found["devices"] == hardware.accelerators()
    assert bool(found["no_gpu"]) == (not found["devices"])
    assert found["no_triton"] == ""


@pytest.mark.slow
def test_a_torch_from_elsewhere_does_not_count(repository: Path, tmp_path: Path) -> None:
    child = _run(tmp_path, repository)
    assert child.returncode == 1
    assert "torch was imported from" in child.stderr.splitlines()[-1]
