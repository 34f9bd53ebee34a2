"""Every kernel compiles for the GPUs it is meant for, and reads weights in loads of 16 bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.interpreted_triton import needs_triton


@needs_triton
def test_all_kernels_compile(repository: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, "-m", "tests.compile_kernels", "89", "90"],
        cwd=repository,
        env=environment | {"PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    lines = result.stdout.splitlines()
    assert len(lines) == 2 * len([line for line in lines if line.startswith("sm_89")])
    # What picks reads a few hundred numbers in all, and what takes the inputs of a step sixteen.
    small = ("pick_one", "take_slots")
    assert all(line.endswith("v4.b32") for line in lines if not any(name in line for name in small)), lines
