"""Driver, GPUs and CUDA compiler as NVIDIA's own tools report them: nvidia-smi and nvcc, where installed.

In: nothing. Out: their lines for a reader, or the GPUs with named fields. Main thread.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

_LINES_QUERY = "name,driver_version,compute_cap,memory.total,memory.used,pstate,power.limit"
_FIELDS = ("name", "driver_version", "memory.total", "compute_cap", "power.limit")
_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class DriverGPU:
    """One GPU. None where the driver does not report a number."""

    name: str
    driver_version: str
    memory_mib: float | None
    compute_capability: str
    power_limit_w: float | None


def driver_gpus() -> list[DriverGPU] | None:
    """All GPUs of the driver, in its order; None without nvidia-smi. Lines that are no GPU, as when the
    driver does not answer, are left out."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    lines = _output(program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    return [
        DriverGPU(name, driver, _number(memory), capability, _number(power))
        for name, driver, memory, capability, power in (row for row in rows if len(row) == len(_FIELDS))
    ]


def cuda_of_driver() -> str | None:
    """The newest CUDA version that the driver supports, such as "13.0"."""
    program = shutil.which("nvidia-smi")
    return None if program is None else _found(r"CUDA(?: UMD)? Version: *([\d.]+)", _output(program))


def cuda_compiler() -> str | None:
    """The CUDA version of nvcc, such as "12.4"; None without it."""
    program = shutil.which("nvcc")
    return None if program is None else _found(r"release ([\d.]+)", _output(program, "--version"))


def driver_lines() -> Iterator[str]:
    """All of this as the tools print it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        yield "no nvidia-smi"
    else:
        yield from _output(program, f"--query-gpu={_LINES_QUERY}", "--format=csv")
        yield from (line for line in _output(program)[:6] if "CUDA" in line)
    compiler = shutil.which("nvcc")
    yield from (_output(compiler, "--version")[-2:] if compiler else ["no nvcc"])


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # [N/A], or [Not Supported]
        return None


def _found(pattern: str, lines: list[str]) -> str | None:
    match = re.search(pattern, "\n".join(lines))
    return None if match is None else match[1]


def _output(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    return (done.stdout or done.stderr).splitlines()
