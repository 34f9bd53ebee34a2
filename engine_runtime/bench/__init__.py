"""Benchmarks of an engine: complete replies (`replies`), single stages against the measured ceilings of the
machine (`stages`), and comparisons with other implementations (`compare`)."""

from engine_runtime.bench.replies import (
    DEFINITIONS,
    SILENCE_DBFS,
    BenchError,
    BenchReport,
    MeasuredReply,
    Summary,
    level_dbfs,
    measure_reply,
    run_bench,
    summarize,
)

__all__ = [
    "DEFINITIONS",
    "SILENCE_DBFS",
    "BenchError",
    "BenchReport",
    "MeasuredReply",
    "Summary",
    "level_dbfs",
    "measure_reply",
    "run_bench",
    "summarize",
]
