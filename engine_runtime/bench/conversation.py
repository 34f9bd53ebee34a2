"""Benchmark of complete replies: with the question streamed while it is spoken, and pushed all at once.

In: an engine, a question, number of runs. Out: one table. Every reply is verified (replies.py). Engine
thread.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import numpy as np

from engine_runtime.bench.replies import measure_reply
from engine_runtime.cuda.stopwatch import p50_p95
from engine_runtime.table import Section
from engine_runtime.types import Pcm, SamplingParams

if TYPE_CHECKING:
    from engine_runtime.engine import Engine

COLUMNS = {
    "question": "while spoken: encoded and prefilled before the commit; at once: everything after the commit",
    "ttfa_ms": "commit to the first PCM sample ready, median",
    "ttfa_ms_p95": "95th percentile",
    "rtf_total": "wall time of the reply / its audio, median",
    "rtf_steady": "wall time of the chunks after the first / their audio, median",
    "gap_ms": "sum of the gaps in a reply that is played in real time from its first chunk on, maximum",
    "reply_s": "audio of one reply",
}


def measure_conversation(
    engine: Engine, question: Pcm, params: SamplingParams | None, repeats: int
) -> Section:
    """Measure `repeats` replies of both kinds, after one warm-up reply of each."""
    section = Section("question to reply", COLUMNS)
    for name, while_spoken in (("while spoken", True), ("at once", False)):
        replies = [
            measure_reply(engine, question, turn_id, params, while_spoken=while_spoken)
            for turn_id in range(1, repeats + 2)
        ][1:]
        values = {
            key: [value for reply in replies for value in reply.values[key]]
            for key in ("ttfa_ms", "rtf_total", "rtf_steady", "gap_ms", "reply_s")
        }
        p50, p95 = p50_p95(values["ttfa_ms"])
        section.rows.append(
            {
                "question": name,
                "ttfa_ms": p50,
                "ttfa_ms_p95": p95,
                "rtf_total": statistics.median(values["rtf_total"]),
                "rtf_steady": statistics.median(values["rtf_steady"]) if values["rtf_steady"] else None,
                "gap_ms": max(values["gap_ms"]),
                "reply_s": statistics.median(values["reply_s"]),
            }
        )
    section.note = f"question of {len(question) / engine.input_sample_rate:.1f} s"
    return section


def question_of(pcm: Pcm, seconds: float, rate: int) -> Pcm:
    """The recording repeated or truncated to this many seconds."""
    samples = round(seconds * rate)
    repeated: Pcm = np.resize(pcm, samples) if len(pcm) else np.zeros(samples, np.float32)
    return repeated
