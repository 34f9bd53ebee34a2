from __future__ import annotations

import numpy as np
import pytest

from engine_runtime.bench.replies import BenchReport, MeasuredReply, TimesFromCommit, summarize
from engine_runtime.bench.reply_tables import figures_section, runs_section, shares_section
from engine_runtime.errors import FlowCacheError
from engine_runtime.timing import TimingEvent


def _event(name: str, ms: float, **attributes: float) -> TimingEvent:
    return TimingEvent(name, 1, 0, round(ms * 1e6), "engine", dict(attributes))


def _reply(ttfa_ms: float) -> MeasuredReply:
    first = [_event("prefill", 10), *[_event("step", 5, sampling_ms=1)] * 4, _event("commit", 0)]
    first += [_event("token2mel", 20), _event("vocoder", 30)]
    later = [*[_event("step", 5, sampling_ms=1)] * 6, _event("token2mel", 100)]
    values = {"ttfa_ms": [ttfa_ms], "first_chunk_ms": [50.0], "rtf_total": [0.1], "reply_s": [1.2]}
    complete = TimesFromCommit.of(0.2, first + later)
    return MeasuredReply((1, 2), np.zeros(2), values, TimesFromCommit.of(ttfa_ms / 1000, first), complete)


def _report(failure: FlowCacheError | None = None) -> BenchReport:
    runs = [_reply(ttfa) for ttfa in (500.0, 90.0, 110.0)]
    return BenchReport({"ttfa_ms": summarize([90.0, 110.0])}, [500.0], 2, 2, runs, failure=failure)


def test_every_run_is_a_row_and_those_of_the_warm_up_are_in_no_mean() -> None:
    rows = runs_section(_report()).rows
    assert [(row["run"], row.get("kind"), row["ttfa_ms"], row.get("status")) for row in rows[:3]] == [
        ("1", "warm-up", 500.0, "ok"),
        ("2", "measured", 90.0, "ok"),
        ("3", "measured", 110.0, "ok"),
    ]
    assert [(row["run"], row["ttfa_ms"]) for row in rows[3:]] == [
        ("mean", 100.0),
        ("std", pytest.approx(14.142, abs=1e-3)),
        ("min", 90.0),
        ("max", 110.0),
    ]
    assert (rows[1]["prefill_ms"], rows[1]["steps_ms"], rows[1]["vocoder_ms"]) == (10.0, 20.0, 30.0)


def test_a_run_that_failed_has_its_reason() -> None:
    rows = runs_section(_report(FlowCacheError("The caches are full. Wait."))).rows
    assert rows[3] == {"run": "4", "status": "failed: The caches are full."}
    assert rows[4]["ttfa_ms"] == 100.0


def test_figures_come_with_their_definitions() -> None:
    section = figures_section(_report())
    assert [row["figure"] for row in section.rows] == list(section.terms) == ["ttfa_ms"]
    assert (section.rows[0]["p50"], section.rows[0]["runs"]) == (100.0, 2)


@pytest.mark.parametrize(("in_step_ms", "sampling"), [(0.0, 4.0), (0.5, 6.0)])
def test_shares_add_up_with_sampling_apart_from_the_step(in_step_ms: float, sampling: float) -> None:
    section = shares_section(_report(), in_step_ms)
    ttfa = {row["stage"]: row["ttfa_ms"] for row in section.rows}
    assert ttfa == {
        "encode": 0.0,
        "prefill": 10.0,
        "decode": 20 - sampling,
        "sampling": sampling,
        "flow": 20.0,
        "vocoder": 30.0,
        "other": pytest.approx(20.0),
        "overlap": 0.0,
        "all": pytest.approx(100.0),
    }
    assert set(ttfa) <= {*section.terms}
    for column, whole in (("ttfa_share", 100), ("reply_share", 100), ("reply_ms", 200)):
        *parts, total = [row[column] for row in section.rows]
        assert sum(parts) == pytest.approx(total) == pytest.approx(whole)
    # The codec runs beside later steps: 10 + 50 + 120 + 30 ms in 200 ms.
    assert [row["reply_ms"] for row in section.rows[-3:-1]] == pytest.approx([0.0, -10.0])
