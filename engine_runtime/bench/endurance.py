"""Endurance test: turns without a pause for minutes, to find memory growth and lost KV blocks.

In: an engine, a question, minutes. Out: one table of memory and turns over time. Each conversation has spoken
replies, a written one and an interrupted one, over a warm context; when it ends, all blocks must be free.
Engine thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import psutil
import torch

from engine_runtime.bench.measuring import BenchError
from engine_runtime.table import Cell, Section
from engine_runtime.types import Modality, Pcm, ReplyAudio, SamplingParams
from engine_runtime.work import run_alone

if TYPE_CHECKING:
    from engine_runtime.engine import Engine

COLUMNS = {
    "at_s": "time since the first turn",
    "turns": "turns so far, interrupted ones included",
    "speech_s": "speech generated so far",
    "host_mb": "resident memory of the process (10^6 bytes)",
    "device_mb": "device memory in tensors",
    "blocks_used": "KV blocks in use after the conversation has ended",
}
ROWS = 10
HOST_GROWTH_MB = 32.0
"""Allowed growth of host memory: allocators round up and keep pages."""
DEVICE_GROWTH_MB = 1.0
_TURNS = ("speech", "speech", "text", "interrupted", "speech")


def measure_endurance(
    engine: Engine,
    question: Pcm,
    minutes: float,
    params: SamplingParams | None = None,
    progress: Callable[[float], None] = lambda seconds: None,
) -> Section:
    """Run conversations until the time has passed, at least two. The last row describes the end.

    `progress` receives the elapsed seconds. Raises BenchError if a block stays in use, a reply is not finite,
    or memory grew after the first tenth of the time.
    """
    section = Section("endurance", COLUMNS)
    device = engine.stages.lm.cache.pool.device
    seconds, start, elapsed = 60 * minutes, time.perf_counter(), 0.0
    turns = samples = 0
    while elapsed < seconds or len(section.rows) < 2:
        made, said = _converse(engine, question, params, turns)
        turns, samples = turns + made, samples + said
        elapsed = time.perf_counter() - start
        progress(min(elapsed, seconds))
        used = engine.stats.used
        if used:
            raise BenchError(
                "{used} KV blocks are still in use after a conversation that ended, {turns} turns from "
                "the start.",
                "This is a defect of the program; please report it.",
                used=used,
                turns=turns,
            )
        if len(section.rows) < 2 or elapsed >= seconds * len(section.rows) / ROWS:
            row: dict[str, Cell] = {
                "at_s": elapsed,
                "turns": turns,
                "speech_s": samples / engine.output_sample_rate,
                "host_mb": psutil.Process().memory_info().rss / 1e6,
                "blocks_used": used,
            }
            if device.type == "cuda":
                row["device_mb"] = torch.cuda.memory_allocated(device) / 1e6
            section.rows.append(row)
    _check_growth(section)
    return section


def _converse(engine: Engine, question: Pcm, params: SamplingParams | None, before: int) -> tuple[int, int]:
    """Run one conversation. Returns its number of turns and of generated samples."""
    conversation, samples = engine.new_conversation(), 0
    text = engine.bundle.lm.sampling_text.seeded()
    speech = (params or engine.bundle.lm.sampling_speech).seeded()
    if params is not None:  # a model with random weights does not end its replies
        text = replace(text, min_new=0, max_new=min(text.max_new, params.max_new))
    for number, kind in enumerate(_TURNS, start=1):
        modality = Modality.TEXT if kind == "text" else Modality.SPEECH
        turn = run_alone(engine.open_turn(conversation, before + number, modality))
        block = engine.input_sample_rate // 10
        for first in range(0, len(question), block):
            run_alone(turn.push(question[first : first + block]))
        for event in run_alone(turn.commit(modality, text if kind == "text" else speech)):
            if isinstance(event, ReplyAudio):
                samples += event.pcm.size
                if not np.isfinite(event.pcm).all():
                    raise BenchError("A reply holds values that are not finite; check the weights.")
                if kind == "interrupted":
                    turn.cancel()
    engine.end_conversation(conversation)
    return len(_TURNS), samples


def _check_growth(section: Section) -> None:
    for name, allowed in (("host_mb", HOST_GROWTH_MB), ("device_mb", DEVICE_GROWTH_MB)):
        found = [row[name] for row in section.rows if isinstance(row.get(name), float)]
        # The first row is excluded: caches are still filling.
        growth = float(found[-1] or 0.0) - float(found[1] or 0.0) if len(found) > 2 else 0.0
        if growth > allowed:
            course = ", ".join(f"{value:.0f}" for value in found)
            raise BenchError(
                "{name} grew by {growth:.1f} over {turns} turns ({course}); at most {allowed:.0f} are "
                "allowed.",
                "This is a defect of the program; please report it.",
                name=name,
                growth=growth,
                turns=section.rows[-1]["turns"],
                course=course,
                allowed=allowed,
            )
