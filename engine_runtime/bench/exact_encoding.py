"""Cost of encoding a spoken turn again at its commit (--exact-encoding), compared with streamed codes.

In: an engine, a question, number of runs. Out: one table; every reply is verified (replies.py). Engine
thread.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from engine_runtime.bench.replies import measure_reply
from engine_runtime.cuda.stopwatch import p50_p95
from engine_runtime.table import Section
from engine_runtime.types import Pcm, SamplingParams

if TYPE_CHECKING:
    from engine_runtime.engine import Engine

TITLE = "exact encoding"
COLUMNS = {
    "codes": "streamed, or of the complete question, encoded again at the commit",
    "ttfa_ms": "commit to the first PCM sample ready, median",
    "ttfa_ms_p95": "95th percentile",
    "encode_ms": "of the speech encoder at the commit: the tail, or the complete question; median",
    "rows_at_commit": "rows prefilled at the commit, median",
    "changed_codes": "codes changed by the encoding at the commit, mean",
}


def measure_exact_encoding(
    engine: Engine, question: Pcm, params: SamplingParams | None, repeats: int
) -> Section:
    """Measure `repeats` replies of both kinds alternately, after one warm-up reply of each."""
    from engine_runtime.engine import Engine

    section = Section(TITLE, COLUMNS, note=f"question of {len(question) / engine.input_sample_rate:.1f} s")
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
                "rows_at_commit": statistics.median(values["rows_at_commit"][0] for values in counted),
                "changed_codes": statistics.fmean(changed),
            }
        )
    return section
