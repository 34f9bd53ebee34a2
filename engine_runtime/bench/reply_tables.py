"""Tables of measured replies: every run by itself, the distribution of each figure, shares of the stages.

In: a `BenchReport`. Out: sections (table.py). Any thread.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from engine_runtime.bench.replies import DEFINITIONS, BenchReport, MeasuredReply, TimesFromCommit
from engine_runtime.table import Cell, Section

RUN_COLUMNS = {
    "run": "replies in order, those of the warm-up first; below them the measured ones together",
    "kind": "of the warm-up (in no other figure), or measured",
    "prefill_ms": "prefill calls between the commit and the first sample",
    "steps_ms": "decode steps before the first sample, sampling included",
    "first_chunk_ms": DEFINITIONS["first_chunk_ms"],
    "vocoder_ms": "the vocoder's part of it",
    "ttfa_ms": DEFINITIONS["ttfa_ms"],
    "rtf_total": DEFINITIONS["rtf_total"],
    "reply_s": DEFINITIONS["reply_s"],
    "status": "ok: finite, not silent, of the right length, the codes of the first run",
}
FIGURE_COLUMNS = {
    "figure": "over the measured replies",
    "runs": "calls or replies",
    "mean": "arithmetic mean",
    "std": "sample deviation",
    "min": "smallest",
    "p50": "median",
    "p95": "95th percentile",
    "max": "largest",
}
SHARE_COLUMNS = {
    "stage": "mean over the measured replies",
    "ttfa_ms": "commit to the first sample",
    "ttfa_share": "of TTFA, in percent",
    "reply_ms": "commit to the last sample",
    "reply_share": "of the wall time of the reply, in percent",
}
SHARE_TERMS = {
    "encode": "speech encoder: what the end of the turn still needs",
    "prefill": "prefill calls",
    "decode": "decode steps without sampling",
    "sampling": "sampling of the ids: on the host as measured in the reply, within the step of a GPU as "
    "measured apart, by steps with and without it",
    "flow": "flow matching",
    "vocoder": "vocoder",
    "other": "the rest of the wall time",
    "overlap": "stages that ran at the same time, which the rows above count twice: to be subtracted",
    "all": "wall time",
}
_STATISTICS: dict[str, Callable[[list[float]], float]] = {
    "mean": statistics.fmean,
    "std": lambda values: statistics.stdev(values) if len(values) > 1 else 0.0,
    "min": min,
    "max": max,
}


def runs_section(report: BenchReport) -> Section:
    """Every reply, then mean, deviation, minimum and maximum of the measured ones."""
    section = Section("runs", RUN_COLUMNS)
    rows = [_run(reply) for reply in report.runs]
    for number, row in enumerate(rows, 1):
        kind = "warm-up" if number <= report.warm_up else "measured"
        section.rows.append({"run": str(number), "kind": kind, **row, "status": "ok"})
    if report.failure is not None:
        number = len(rows) + 1
        section.rows.append({"run": str(number), "status": f"failed: {report.failure.what_is_wrong}"})
    counted = rows[report.warm_up :]
    for name, of in _STATISTICS.items():
        section.rows.append(
            {"run": name} | {column: of([row[column] for row in counted]) for column in counted[0]}
        )
    return section


def figures_section(report: BenchReport) -> Section:
    """The distribution of every figure."""
    terms = {name: text for name, text in DEFINITIONS.items() if name in report.metrics}
    section = Section("replies", FIGURE_COLUMNS, terms=terms)
    for name, summary in report.metrics.items():
        row: dict[str, Cell] = {"figure": name}
        section.rows.append(row | {column: getattr(summary, column) for column in list(FIGURE_COLUMNS)[1:]})
    return section


def shares_section(report: BenchReport, sampling_in_step_ms: float) -> Section:
    """What TTFA and the whole reply consist of. `sampling_in_step_ms`: what sampling adds to a step that
    samples on the device, else 0."""
    section = Section("stages of a reply", SHARE_COLUMNS, terms=SHARE_TERMS)
    counted = report.runs[report.warm_up :]
    first = _mean_parts([reply.to_first for reply in counted], sampling_in_step_ms)
    complete = _mean_parts([reply.complete for reply in counted], sampling_in_step_ms)
    for name in first:
        section.rows.append(
            {
                "stage": name,
                "ttfa_ms": first[name],
                "ttfa_share": 100 * first[name] / first["all"],
                "reply_ms": complete[name],
                "reply_share": 100 * complete[name] / complete["all"],
            }
        )
    return section


def _run(reply: MeasuredReply) -> dict[str, float]:
    first = reply.to_first.stages
    return {
        "prefill_ms": first.get("prefill", 0.0),
        "steps_ms": first.get("step", 0.0),
        "first_chunk_ms": reply.values["first_chunk_ms"][0],
        "vocoder_ms": first.get("vocoder", 0.0),
        **{name: reply.values[name][0] for name in ("ttfa_ms", "rtf_total", "reply_s")},
    }


def _mean_parts(times: list[TimesFromCommit], sampling_in_step_ms: float) -> dict[str, float]:
    """Milliseconds by the names of SHARE_TERMS, which add up to "all"."""

    def stage(name: str) -> float:
        return statistics.fmean(one.stages.get(name, 0.0) for one in times)

    sampling = statistics.fmean(one.sampling_ms + one.steps * sampling_in_step_ms for one in times)
    parts = {
        "encode": stage("encode"),
        "prefill": stage("prefill"),
        "decode": stage("step") - sampling,
        "sampling": sampling,
        "flow": stage("token2mel"),
        "vocoder": stage("vocoder"),
    }
    wall = statistics.fmean(one.wall_ms for one in times)
    rest = wall - sum(parts.values())
    return parts | {"other": max(rest, 0.0), "overlap": min(rest, 0.0), "all": wall}
