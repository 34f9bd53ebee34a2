"""Benchmark of the vocoder's chunks for several replies at once.

In: a vocoder and the sizes of its chunks. Out: a table by chunk and number of replies. Each reply has another
mel; before a time is reported, the samples of the first one are compared with those of the reply alone.
Engine thread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch

from engine_runtime.bench.batched_flow import REPLIES, run_joined
from engine_runtime.codec.vocoder.vocoder import Vocoder
from engine_runtime.cuda.stopwatch import wait_for
from engine_runtime.table import Cell, Section
from engine_runtime.types import Pcm

TOLERANCE = 0.1
"""Largest distance of the samples from those of the reply alone, relative to their norm; more than rounding
in bfloat16 makes."""

COLUMNS = {
    "replies": "replies whose chunks are made in one call",
    "chunk": "its number in the reply",
    "frames": "mel frames of the chunk",
    "ms": "median of a call, host and device",
    "ms_each": "ms / replies",
    "error": "distance of the first reply's samples from those of the reply alone / their norm; at most "
    f"{TOLERANCE}",
    "valid": "yes, or why no time is reported",
}


def measure_batched_vocoder(
    vocoder: Vocoder,
    frames: Sequence[int],
    device: torch.device,
    replies: Sequence[int] = REPLIES,
    repeats: int = 5,
) -> Section:
    """Chunks of these sizes, in mel frames."""
    section = Section("chunks of the vocoder", COLUMNS)
    _, alone = _rounds(vocoder, frames, device, 1)
    for count in replies:
        times: list[list[float]] = []
        for _ in range(repeats + 1):
            elapsed, pcm = _rounds(vocoder, frames, device, count)
            times.append(elapsed)
        error = float(np.linalg.norm(pcm - alone) / max(float(np.linalg.norm(alone)), 1e-9))
        is_valid = error <= TOLERANCE
        for chunk, size in enumerate(frames):
            ms = statistics.median(elapsed[chunk] for elapsed in times[1:])
            row: dict[str, Cell] = {"replies": count, "chunk": chunk + 1, "frames": size, "error": error}
            if is_valid:
                row |= {"ms": ms, "ms_each": ms / count}
            section.rows.append(
                row | {"valid": "yes" if is_valid else "no: other samples than those of one reply"}
            )
    return section


def _rounds(
    vocoder: Vocoder, frames: Sequence[int], device: torch.device, count: int
) -> tuple[list[float], Pcm]:
    """Milliseconds of each call, and the samples of the first reply."""
    streams = [vocoder.stream() for _ in range(count)]
    generators = [torch.Generator().manual_seed(seed) for seed in range(count)]
    times: list[float] = []
    parts = []
    for size in frames:
        mels = [torch.randn((vocoder.mel.n_mels, size), generator=one) * 2.0 - 5.0 for one in generators]
        works = [stream.push_work(mel.to(device)) for stream, mel in zip(streams, mels, strict=True)]
        wait_for(device)
        start = time.perf_counter()
        results = run_joined(works)
        wait_for(device)
        times.append((time.perf_counter() - start) * 1000)
        parts.append(results[0])
    return times, torch.cat(parts).cpu().numpy()
