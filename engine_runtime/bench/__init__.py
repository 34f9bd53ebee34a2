"""Measurements of an engine and of the machine below it: whole replies (`replies`), each stage alone against
the ceilings of the machine (`stages`), and in comparison with other implementations (`compare`)."""

from engine_runtime.bench.replies import (
    DEFINITIONS,
    SILENCE_DBFS,
    BenchError,
    BenchReport,
    Reply,
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
    "Reply",
    "Summary",
    "level_dbfs",
    "measure_reply",
    "run_bench",
    "summarize",
]
