"""Times repeated work on a device.

In: a function. Out: milliseconds of each call on the host's clock, synchronized before and after, as the
engine sees them. Runs in the thread of its caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import torch

_Result = TypeVar("_Result")


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


class Stopwatch:
    """Times the calls of one round of work."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.times_ms: list[float] = []

    def time(self, call: Callable[[], _Result]) -> _Result:
        """The result of a call, which is timed."""
        wait_for(self._device)
        start = time.perf_counter()
        result = call()
        wait_for(self._device)
        self.times_ms.append((time.perf_counter() - start) * 1000)
        return result


def rounds_ms(
    run: Callable[[Stopwatch], _Result], device: torch.device, repeats: int, warm_up: int = 1
) -> tuple[list[list[float]], _Result]:
    """Milliseconds of each call of a round, over `repeats` rounds after `warm_up` unmeasured ones, and what
    the last round returned. Every round makes the same calls."""
    rounds = []
    for _ in range(warm_up + repeats):
        watch = Stopwatch(device)
        result = run(watch)
        rounds.append(watch.times_ms)
    return [list(times) for times in zip(*rounds[warm_up:], strict=True)], result
