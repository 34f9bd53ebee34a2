"""What an engine takes: time to load, memory of the device and of the host.

In: a device and how long loading took. Out: one table. Any thread.
"""

from __future__ import annotations

import psutil
import torch

from engine_runtime.table import Section

COLUMNS = {
    "load_s": "bundle opened, every network loaded and warmed up",
    "allocated_gb": "device memory in tensors now (10^9 bytes)",
    "peak_gb": "the most there was while loading",
    "reserved_gb": "device memory that torch holds",
    "host_gb": "resident memory of the process",
}


def reset_peak(device: torch.device) -> None:
    """Let the peak begin anew, before an engine is loaded."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def measure_memory(device: torch.device, load_s: float) -> Section:
    """Memory as it is now, right after loading."""
    section = Section("load and memory", COLUMNS)
    row: dict[str, float | int | str | None] = {
        "load_s": load_s,
        "host_gb": psutil.Process().memory_info().rss / 1e9,
    }
    if device.type == "cuda":
        row["allocated_gb"] = torch.cuda.memory_allocated(device) / 1e9
        row["peak_gb"] = torch.cuda.max_memory_allocated(device) / 1e9
        row["reserved_gb"] = torch.cuda.memory_reserved(device) / 1e9
    else:
        section.note = "device memory does not apply on a CPU"
    section.rows.append(row)
    return section
