"""Times repeated work on a device, and summarizes the times.

In: a function. Out: milliseconds of each call on the host's clock, synchronized before and after, as the
engine sees them. Runs in the thread of its caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch


def wait_for(device: torch.device) -> None:
    """Wait for all work on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def times_ms(run: Callable[[], object], device: torch.device, repeats: int, warm_up: int = 1) -> list[float]:
    """Milliseconds of each of `repeats` calls, after `warm_up` unmeasured ones."""
    for _ in range(warm_up):
        run()
    times = []
    for _ in range(repeats):
        wait_for(device)
        start = time.perf_counter()
        run()
        wait_for(device)
        times.append((time.perf_counter() - start) * 1000)
    return times


def p50_p95(times: list[float]) -> tuple[float, float]:
    """Median and 95th percentile, interpolated."""
    p50, p95 = np.percentile(times, [50, 95])
    return float(p50), float(p95)
