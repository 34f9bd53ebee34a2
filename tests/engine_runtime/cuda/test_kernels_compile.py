"""Every kernel compiles for its target GPUs, and reads weights in loads of 16 bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doubles.interpreted_triton import needs_triton

pytestmark = pytest.mark.slow


@needs_triton
def test_all_kernels_compile(repository: Path) -> None:
    """For one GPU beside the other: the compiler uses one core."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.tools.compile_kernels", capability],
            cwd=repository,
            env=environment | {"PYTHONPATH": str(repository)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for capability in ("89", "90")
    ]
    results = [process.communicate() for process in running]
    for process, (_, errors) in zip(running, results, strict=True):
        assert process.returncode == 0, errors[-2000:]
    ada, hopper = (out.splitlines() for out, _ in results)
    assert len(ada) == len(hopper) > 0
    # The sampler reads a few hundred numbers in all, and what takes the inputs of a step as few per field.
    small = ("sample_one", "take_slots", "take_fields")
    lines = [*ada, *hopper]
    assert all(line.endswith("v4.b32") for line in lines if not any(name in line for name in small)), lines
