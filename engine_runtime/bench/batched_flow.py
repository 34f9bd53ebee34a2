"""Benchmark of the flow's packets for several replies at once.

In: a token2mel stage. Out: a table by packet and number of replies. Each reply has other codes; before a time
is reported, the mel of the first one is compared with that of the reply alone. Engine thread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine_runtime.codec.flow.token2mel import Token2Mel
from engine_runtime.cuda.stopwatch import wait_for
from engine_runtime.table import Cell, Section
from engine_runtime.work import Task, Work

REPLIES = (1, 2, 4, 8, 16)
TOLERANCE = 0.05
"""Largest mean distance of a log-mel from that of the reply alone."""

COLUMNS = {
    "replies": "replies whose packets are made in one call",
    "packet": "its number in the reply",
    "codes": "codes of the packet",
    "ms": "median of a call, host and device",
    "ms_each": "ms / replies",
    "error": f"mean distance of the first log-mel from that of the reply alone; at most {TOLERANCE}",
    "valid": "yes, or why no time is reported",
}


def measure_batched_flow(
    token2mel: Token2Mel, device: torch.device, replies: Sequence[int] = REPLIES, repeats: int = 5
) -> Section:
    """The packets of the flow up to the first of the largest size, for no more replies than run at once."""
    section = Section("packets of the flow", COLUMNS)
    most = token2mel.most_streams
    if left_out := [count for count in replies if most is not None and count > most]:
        section.note = (
            f"not measured: {', '.join(map(str, left_out))} replies; this engine runs {most} at once"
        )
    ends = token2mel.packet_ends()
    sizes = [next(ends) - token2mel.prompt_codes for _ in token2mel.packet_codes]
    codes = sizes[-1] + token2mel.look_ahead_codes
    _, alone = _rounds(token2mel, device, 1, codes)
    for count in replies:
        if count in left_out:
            continue
        times: list[list[float]] = []
        for _ in range(repeats + 1):
            elapsed, mel = _rounds(token2mel, device, count, codes)
            times.append(elapsed)
        error = float(np.abs(mel - alone).mean())
        is_valid = error <= TOLERANCE
        for packet, (start, end) in enumerate(zip([0, *sizes], sizes, strict=False)):
            ms = statistics.median(elapsed[packet] for elapsed in times[1:])
            row: dict[str, Cell] = {
                "replies": count,
                "packet": packet + 1,
                "codes": end - start,
                "error": error,
            }
            if is_valid:
                row |= {"ms": ms, "ms_each": ms / count}
            section.rows.append(
                row | {"valid": "yes" if is_valid else "no: another mel than that of one reply"}
            )
    return section


def _rounds(
    token2mel: Token2Mel, device: torch.device, count: int, codes: int
) -> tuple[list[float], np.ndarray]:
    """Milliseconds of each call, and the mel of the first reply. A packet that takes several calls counts as
    one of them each."""
    streams = [token2mel.stream() for _ in range(count)]
    draw = np.random.default_rng(0).integers
    tasks = [stream.push_task(draw(0, token2mel.config.vocab_size, codes)) for stream in streams]
    works = [next(task) for task in tasks]
    times: list[float] = []
    while True:
        wait_for(device)
        start = time.perf_counter()
        results = run_joined(works)
        wait_for(device)
        times.append((time.perf_counter() - start) * 1000)
        following = [_next(task, result) for task, result in zip(tasks, results, strict=True)]
        works = [work for work in following if not isinstance(work, list)]
        if not works:
            first = following[0]
            assert isinstance(first, list)
            return times, torch.cat(first, dim=1).float().cpu().numpy()


def run_joined(works: list[Work]) -> list[Tensor]:
    """The results of works of one kind: in one call if they join, else one by one."""
    joins = all(work.batch_key is not None and work.fits(works[:place]) for place, work in enumerate(works))
    if len(works) == 1 or not joins:
        return [work.run() for work in works]
    return list(works[0].run_together(works))


def _next(task: Task[list[Tensor]], result: Tensor) -> Work | list[Tensor]:
    try:
        return task.send(result)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
