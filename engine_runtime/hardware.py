"""Processor, accelerators and library versions, for reports; not for hot paths."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
import time
from importlib import metadata
from pathlib import Path

import psutil
import torch

from engine_runtime.cpu_threads import describe_wait_policy, other_load, read_cpu_time
from engine_runtime.errors import MossVoiceError


class AcceleratorError(MossVoiceError):
    """A requested device cannot be used."""


def usable_device(name: str) -> torch.device:
    """The device of this name (cpu, cuda, cuda:1). Raises AcceleratorError if it cannot be used."""
    if re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name) is None:  # other torch devices are not supported
        raise AcceleratorError("{name!r} is not a device.", "Use cpu, cuda or cuda:N.", name=name)
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        reason = why_no_cuda()
        none = f"no CUDA device that torch {torch_build()} can use{reason and f' ({reason})'}"
        there = ", ".join(accelerators()) or none
        raise AcceleratorError(
            "{name} is not available: this machine has {there}.", "Use --device cpu.", name=name, there=there
        )
    return device


_highest_capability: tuple[int, int] | None = None
"""Set by `limit_capability`."""


def limit_capability(highest: str | None) -> None:
    """Select kernels as if no GPU of this process had a higher compute capability ("8.9"); None for no limit.

    With 8.9, an H100 runs the kernels of an RTX 4090; Triton and cuBLAS still generate code for the real GPU.
    It applies to engines that are loaded afterwards.
    """
    global _highest_capability
    _highest_capability = None if highest is None else _parse_capability(highest)


def kernel_capability(device: torch.device) -> tuple[int, int]:
    """The compute capability that every selection of a kernel goes by: that of the GPU, or less after
    `limit_capability`. (0, 0) for a CPU."""
    if device.type != "cuda":
        return 0, 0
    own = torch.cuda.get_device_capability(device)
    return own if _highest_capability is None else min(own, _highest_capability)


def describe_capability(device: torch.device) -> str:
    """The compute capability of a GPU, and the one that its kernels are selected for if that is less."""
    own, selected = torch.cuda.get_device_capability(device), kernel_capability(device)
    shown = "{}.{}".format(*own)
    return shown if own == selected else "{}.{}, kernels of {}.{}".format(*own, *selected)


def _parse_capability(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


_OPTIONAL_LIBRARIES = ("triton", "tensorrt", "tensorrt-rtx", "tensorrt-llm")
"""Named in a report where they are installed."""


def environment(device: str = "cpu", dtype: str = "float32") -> dict[str, str | int | float]:
    """Everything that affects measured times, as plain values for the header of a report."""
    found: dict[str, str | int | float] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "thread_waiting": describe_wait_policy(),
        "numpy": metadata.version("numpy"),
        "device": device,
        "dtype": dtype,
    }
    for package in _OPTIONAL_LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    if device.startswith("cuda") and torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name(torch.device(device))
        found["compute_capability"] = describe_capability(torch.device(device))
        found["cuda"] = str(torch.version.cuda)
        if (driver := _ask_driver(torch.device(device), "driver_version")) is not None:
            found["driver"] = driver[0]
    return found


def load_of_others(seconds: float) -> float:
    """Number of cores that other programs keep busy, measured over the next `seconds`."""
    before = read_cpu_time()
    time.sleep(seconds)
    return other_load(before, read_cpu_time())


def accelerators() -> list[str]:
    """One line for each CUDA device that torch can use."""
    if not torch.cuda.is_available():
        return []
    lines = []
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        lines.append(
            f"cuda:{index} {about.name}, {about.total_memory / 2**30:.0f} GiB, sm_{about.major}{about.minor}"
        )
    return lines


_CLOCKS = {
    "sm_mhz": "clocks.sm",
    "memory_mhz": "clocks.mem",
    "temperature_c": "temperature.gpu",
    "power_w": "power.draw",
}
"""Keys of `gpu_clocks`, with their names in nvidia-smi."""


def gpu_clocks(device: torch.device) -> dict[str, float]:
    """Current clocks and temperature of a GPU: under load for minutes it is slower than when cool.

    Empty on a CPU, and if nvidia-smi is missing or does not report them.
    """
    try:
        values = [float(value) for value in _ask_driver(device, *_CLOCKS.values()) or ()]
    except ValueError:
        return {}
    return dict(zip(_CLOCKS, values, strict=False))


def driver_query(device: torch.device, *names: str) -> list[str] | None:
    """The command by which the driver's nvidia-smi prints these properties of a GPU, separated by commas.
    None on a CPU, and if nvidia-smi is missing."""
    program = shutil.which("nvidia-smi") if device.type == "cuda" else None
    if program is None:
        return None
    uuid = torch.cuda.get_device_properties(device).uuid
    return [program, f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits", f"--id=GPU-{uuid}"]


def _ask_driver(device: torch.device, *names: str) -> list[str] | None:
    query = driver_query(device, *names)
    if query is None:
        return None
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    values = [value.strip() for value in done.stdout.strip().split(",")]
    return values if len(values) == len(names) else None


def torch_build() -> str:
    """Version of torch and its build (CUDA version or CPU)."""
    cuda = torch_cuda()
    return f"{torch.__version__} ({f'CUDA {cuda}' if cuda else 'CPU build'})"


def torch_cuda() -> str | None:
    """The CUDA version that torch was built for, such as "13.0"; None for a CPU build."""
    return torch.version.cuda


def why_no_cuda() -> str:
    """Why CUDA does not start, for example an old driver; "" if it does."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).strip().splitlines()[0].rstrip(".")
    return ""


def device_name(device: torch.device) -> str:
    """Name of a GPU as its driver reports it, or of the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor()


def used_memory(device: torch.device) -> int:
    """Bytes in use: of a GPU by all programs and libraries, as its driver counts them; elsewhere those of
    this process in main memory."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free
    return int(psutil.Process().memory_info().rss)


def processor() -> str:
    """Name of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
