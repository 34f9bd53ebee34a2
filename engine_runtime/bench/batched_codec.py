"""Benchmark of the codec for several replies at once: packets of the flow, chunks of the vocoder.

In: a stage. Out: a table by packet or chunk and number of replies. Each reply has other codes or another mel;
before a time is reported, the output of the first one is compared with that of the reply alone. Engine
thread.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from engine_runtime.codec.flow.token2mel import Token2Mel
from engine_runtime.codec.vocoder.vocoder import Vocoder
from engine_runtime.cuda.stopwatch import Stopwatch, rounds_ms
from engine_runtime.table import Cell, Section
from engine_runtime.types import Pcm
from engine_runtime.work import Task, Work

REPLIES = (1, 2, 4, 8, 16)
FLOW_TOLERANCE = 0.05
"""Largest mean distance of a log-mel from that of the reply alone."""

FLOW_COLUMNS = {
    "replies": "replies whose packets are made in one call",
    "packet": "its number in the reply",
    "codes": "codes of the packet",
    "ms": "median of a call, host and device",
    "ms_each": "ms / replies",
    "error": f"mean distance of the first log-mel from that of the reply alone; at most {FLOW_TOLERANCE}",
    "valid": "yes, or why no time is reported",
}


def measure_batched_flow(
    token2mel: Token2Mel, device: torch.device, replies: Sequence[int] = REPLIES, repeats: int = 5
) -> Section:
    """The packets of the flow up to the first of the largest size, for no more replies than run at once."""
    section = Section("packets of the flow", FLOW_COLUMNS)
    most = token2mel.most_streams
    if left_out := [count for count in replies if most is not None and count > most]:
        section.note = (
            f"not measured: {', '.join(map(str, left_out))} replies; this engine runs {most} at once"
        )
    ends = token2mel.packet_ends()
    sizes = [next(ends) - token2mel.prompt_codes for _ in token2mel.packet_codes]
    codes = sizes[-1] + token2mel.look_ahead_codes
    alone = _flow_round(token2mel, 1, codes, Stopwatch(device))
    for count in replies:
        if count in left_out:
            continue
        times, mel = rounds_ms(partial(_flow_round, token2mel, count, codes), device, repeats)
        error = float(np.abs(mel - alone).mean())
        is_valid = error <= FLOW_TOLERANCE
        for packet, (start, end) in enumerate(zip([0, *sizes], sizes, strict=False)):
            ms = statistics.median(times[packet])
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


def _flow_round(token2mel: Token2Mel, count: int, codes: int, watch: Stopwatch) -> np.ndarray:
    """Time each call for these many replies. Returns the mel of the first one. A packet that takes several
    calls counts as one of them each."""
    streams = [token2mel.stream() for _ in range(count)]
    draw = np.random.default_rng(0).integers
    tasks = [stream.push(draw(0, token2mel.config.vocab_size, codes)) for stream in streams]
    works = [next(task) for task in tasks]
    while True:
        results = watch.time(partial(_run_joined, works))
        following = [_next(task, result) for task, result in zip(tasks, results, strict=True)]
        works = [work for work in following if not isinstance(work, list)]
        if not works:
            first = following[0]
            assert isinstance(first, list)
            mel: np.ndarray = torch.cat(first, dim=1).float().cpu().numpy()
            return mel


def _run_joined(works: list[Work[Tensor]]) -> list[Tensor]:
    """The results of works of one kind: in one call if they join, else one by one."""
    joins = all(work.batch_key is not None and work.fits(works[:place]) for place, work in enumerate(works))
    if len(works) == 1 or not joins:
        return [work.run() for work in works]
    return list(works[0].run_together(works))


def _next(task: Task[list[Tensor]], result: Tensor) -> Work[Tensor] | list[Tensor]:
    try:
        return task.send(result)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


VOCODER_TOLERANCE = 0.1
"""Largest distance of the samples from those of the reply alone, relative to their norm; more than rounding
in bfloat16 makes."""

VOCODER_COLUMNS = {
    "replies": "replies whose chunks are made in one call",
    "chunk": "its number in the reply",
    "frames": "mel frames of the chunk",
    "ms": "median of a call, host and device",
    "ms_each": "ms / replies",
    "error": "distance of the first reply's samples from those of the reply alone / their norm; at most "
    f"{VOCODER_TOLERANCE}",
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
    section = Section("chunks of the vocoder", VOCODER_COLUMNS)
    alone = _vocoder_round(vocoder, frames, device, 1, Stopwatch(device))
    for count in replies:
        times, pcm = rounds_ms(partial(_vocoder_round, vocoder, frames, device, count), device, repeats)
        error = float(np.linalg.norm(pcm - alone) / max(float(np.linalg.norm(alone)), 1e-9))
        is_valid = error <= VOCODER_TOLERANCE
        for chunk, size in enumerate(frames):
            ms = statistics.median(times[chunk])
            row: dict[str, Cell] = {"replies": count, "chunk": chunk + 1, "frames": size, "error": error}
            if is_valid:
                row |= {"ms": ms, "ms_each": ms / count}
            section.rows.append(
                row | {"valid": "yes" if is_valid else "no: other samples than those of one reply"}
            )
    return section


def _vocoder_round(
    vocoder: Vocoder, frames: Sequence[int], device: torch.device, count: int, watch: Stopwatch
) -> Pcm:
    """Time each chunk of these many replies. Returns the samples of the first one."""
    streams = [vocoder.stream() for _ in range(count)]
    generators = [torch.Generator().manual_seed(seed) for seed in range(count)]
    parts = []
    for size in frames:
        mels = [torch.randn((vocoder.mel.n_mels, size), generator=one) * 2.0 - 5.0 for one in generators]
        works = [stream.push_work(mel.to(device)) for stream, mel in zip(streams, mels, strict=True)]
        parts.append(watch.time(partial(_run_joined, works))[0])
    pcm: Pcm = torch.cat(parts).cpu().numpy()
    return pcm
