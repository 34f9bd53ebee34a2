"""Shared rules of measuring: outputs are checked before a time is reported, and all values are summarized
alike.

In: outputs, values of repeated runs (cuda/stopwatch.py times them, after a warm-up). Out: summaries and
their table. Any thread.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from engine_runtime.errors import MossVoiceError
from engine_runtime.table import Cell, Section
from engine_runtime.types import Pcm

SILENCE_DBFS = -60.0
SUMMARY_COLUMNS = {
    "figure": "of the measured calls or replies",
    "runs": "number of values",
    "mean": "arithmetic mean",
    "std": "sample deviation",
    "min": "smallest",
    "p50": "median",
    "p95": "95th percentile",
    "max": "largest",
}


class BenchError(MossVoiceError):
    """The engine's output is wrong, so its times are meaningless."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Distribution of one figure. `std` is the sample deviation, percentiles are interpolated."""

    mean: float
    std: float
    min: float
    p50: float
    p95: float
    max: float
    runs: int


def summarize(values: Sequence[float]) -> Summary:
    """Summary of at least one value."""
    p50, p95 = p50_p95(values)
    return Summary(
        mean=statistics.fmean(values),
        std=deviation(values),
        min=min(values),
        p50=p50,
        p95=p95,
        max=max(values),
        runs=len(values),
    )


def p50_p95(values: Sequence[float]) -> tuple[float, float]:
    """Median and 95th percentile, interpolated."""
    p50, p95 = np.percentile(values, [50, 95])
    return float(p50), float(p95)


def deviation(values: Sequence[float]) -> float:
    """Sample deviation; 0 of a single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def summary_section(title: str, summaries: Mapping[str, Summary], definitions: Mapping[str, str]) -> Section:
    """The distribution of each figure, with its definition."""
    section = Section(title, SUMMARY_COLUMNS, terms={name: definitions[name] for name in summaries})
    for name, summary in summaries.items():
        row: dict[str, Cell] = {"figure": name}
        section.rows.append(row | {column: getattr(summary, column) for column in list(SUMMARY_COLUMNS)[1:]})
    return section


def check_sound(what: str, pcm: Pcm, expected: int) -> None:
    """Raise BenchError unless `pcm` is finite, not silent, and of this many samples."""
    if not np.isfinite(pcm).all():
        raise BenchError(
            "{what} holds values that are not finite.", "No times are reported; check the weights.", what=what
        )
    if level_dbfs(pcm) < SILENCE_DBFS:
        raise BenchError(
            "{what} is silent.",
            "No times are reported; check the weights or ask another question.",
            what=what,
        )
    if len(pcm) != expected:
        raise BenchError(
            "{what} has {count} samples where {expected} were expected.",
            "No times are reported.",
            what=what,
            count=len(pcm),
            expected=expected,
        )


def level_dbfs(pcm: Pcm) -> float:
    """RMS level of a signal, full scale = 0 dB."""
    power = float(np.mean(np.square(pcm, dtype=np.float64))) if len(pcm) else 0.0
    return 10 * math.log10(max(power, 1e-30))
