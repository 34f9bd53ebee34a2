"""Every kernel compiles for its target GPUs, fits there without spills, and reads weights in loads of 16
bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doubles.interpreted_triton import needs_triton

pytestmark = pytest.mark.slow
SMALL = ("sample_one", "take_slots", "take_fields")
"""The sampler reads a few hundred numbers in all, and what takes the inputs of a step as few per field."""
LOCAL = {
    "attend_rows": 32,
    "attend_slots": 40,
    "attend_small_batch": 8,
    "rope_and_write_rows": 8,
    "snake_values": 32,
}
"""Bytes of a thread beside its registers: a few spilled ones, of which those of a decode step have none with
Triton 3.7; the table of sin for large angles. Others have none."""


@needs_triton
def test_all_kernels_compile(repository: Path) -> None:
    """For the GPUs side by side: the compiler uses one core."""
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
        for capability in ("86", "89", "90")
    ]
    results = [process.communicate() for process in running]
    for process, (_, errors) in zip(running, results, strict=True):
        assert process.returncode == 0, errors[-2000:]
    ampere, ada, hopper = ([line.split() for line in out.splitlines()] for out, _ in results)
    assert len(ada) == len(hopper) > len(ampere) > 0
    for gpu, kernel, loads, *_ in (*ampere, *ada, *hopper):
        assert loads == "v4.b32" or kernel in SMALL, (gpu, kernel)
    for gpu, kernel, _, _, _, local, *_ in (*ampere, *ada):
        assert int(local) <= LOCAL.get(kernel, 0), (gpu, kernel, local)
