"""Benchmarks that compare two kinds of complete replies: to a question that is streamed while it is spoken or
pushed all at once; with streamed speech codes or those of the complete question, encoded again at its commit
(--exact-encoding).

In: an engine, a question, number of runs. Out: one table each. Every reply is verified (replies.py). Engine
thread.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from engine_runtime.bench.measuring import p50_p95
from engine_runtime.bench.replies import measure_reply
from engine_runtime.table import Section
from engine_runtime.types import Pcm, SamplingParams

if TYPE_CHECKING:
    from engine_runtime.engine import Engine

CONVERSATION_COLUMNS = {
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
    section = Section("question to reply", CONVERSATION_COLUMNS)
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


ENCODING_TITLE = "exact encoding"
ENCODING_COLUMNS = {
    "codes": "streamed, or of the complete question, encoded again at the commit",
    "ttfa_ms": "commit to the first PCM sample ready, median",
    "ttfa_ms_p95": "95th percentile",
    "encode_ms": "of the speech encoder at the commit: the tail, or the complete question; median",
    "tokens_at_commit": "rows prefilled at the commit, median",
    "changed_codes": "codes changed by the encoding at the commit, mean",
}


def measure_exact_encoding(
    engine: Engine, question: Pcm, params: SamplingParams | None, repeats: int
) -> Section:
    """Measure `repeats` replies of both kinds alternately, after one warm-up reply of each."""
    from engine_runtime.engine import Engine

    section = Section(
        ENCODING_TITLE, ENCODING_COLUMNS, note=f"question of {len(question) / engine.input_sample_rate:.1f} s"
    )
    stages = engine.stages
    if not stages.speech_tokenizer.is_revised:
        section.note = "streamed codes of this bundle are exact: --exact-encoding changes nothing"
        return section
    kinds = {
        name: Engine(replace(stages, options=replace(stages.options, exact_encoding=is_exact)))
        for name, is_exact in (("streamed", False), ("exact", True))
    }
    replies: dict[str, list[dict[str, list[float]]]] = {name: [] for name in kinds}
    shift = len(question) // (2 * (repeats + 1) + 1)
    for number in range(repeats + 1):
        for offset, (name, each) in enumerate(kinds.items()):
            # Shift the question so that its codes differ: earlier rows must not be found in the prefix cache.
            shifted = np.roll(question, (2 * number + offset) * shift)
            replies[name].append(measure_reply(each, shifted, number + 1, params).values)
    for name, found in replies.items():
        counted = found[1:]
        p50, p95 = p50_p95([values["ttfa_ms"][0] for values in counted])
        # The last call of the encoder is the one at the commit.
        encode = [values.get("exact_encode_ms", values["encode_ms"])[-1] for values in counted]
        changed = [values.get("changed_codes", [0.0])[0] for values in counted]
        section.rows.append(
            {
                "codes": name,
                "ttfa_ms": p50,
                "ttfa_ms_p95": p95,
                "encode_ms": statistics.median(encode),
                "tokens_at_commit": statistics.median(values["tokens_at_commit"][0] for values in counted),
                "changed_codes": statistics.fmean(changed),
            }
        )
    return section
