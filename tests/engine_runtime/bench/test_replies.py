from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest

from engine_runtime.bench import replies
from engine_runtime.bench.measuring import BenchError, level_dbfs, summarize
from engine_runtime.bench.replies import (
    BenchReport,
    MeasuredReply,
    TimesFromCommit,
    figures_section,
    run_bench,
    runs_section,
    shares_section,
)
from engine_runtime.engine import Engine
from engine_runtime.errors import FlowCacheError
from engine_runtime.timing import Listener, TimingBus, TimingEvent
from engine_runtime.types import Modality, Pcm, ReplyAudio, ReplyDone, ReplyEvent, SamplingParams
from engine_runtime.work import Task
from tests.engine_runtime.test_table import number

RATE = 24000
SAMPLES_PER_CODE = 1920


@dataclass
class ScriptedSection:
    sampling_speech: SamplingParams = field(default_factory=SamplingParams)


@dataclass
class ScriptedBundle:
    samples_per_code: int = SAMPLES_PER_CODE
    lm: ScriptedSection = field(default_factory=ScriptedSection)


@dataclass
class SteppedTime:
    """The clock of the measurement, which the engine moves."""

    now_s: float = 5.0

    def perf_counter(self) -> float:
        return self.now_s


@dataclass
class ScriptedEngine:
    """Answers with a tone of three chunks, each after `chunk_s` on `clock`."""

    pcm: Pcm
    clock: SteppedTime | None = None
    codes: tuple[int, ...] = tuple(range(15))
    chunk_s: float = 0.01
    timing: TimingBus = field(default_factory=TimingBus)
    bundle: ScriptedBundle = field(default_factory=ScriptedBundle)
    input_sample_rate: int = 16000
    output_sample_rate: int = RATE
    pushed: list[int] = field(default_factory=list)
    forgetful: bool = True
    open_conversations: int = 0

    def new_conversation(self) -> object:
        self.open_conversations += 1
        return object()

    def end_conversation(self, conversation: object) -> None:
        self.open_conversations -= 1

    def open_turn(self, conversation: object, turn_id: int, reply: Modality) -> Task[ScriptedEngine]:
        yield from ()
        self.turn_id = turn_id
        return self

    def push(self, pcm: Pcm) -> Task[int]:
        yield from ()
        self.pushed.append(len(pcm))
        with self.timing.span("prefill", self.turn_id, tokens=1):
            pass
        return 1

    def commit(self, reply: Modality, params: SamplingParams | None = None) -> Task[Iterator[ReplyEvent]]:
        yield from ()
        return self._events(reply)

    def _events(self, reply: Modality) -> Iterator[ReplyEvent]:
        self.timing.emit("prefill", self.turn_id, 0, 2_000_000, tokens=7, tokens_at_commit=7, phase="commit")
        for index, chunk in enumerate(np.array_split(self.pcm, 3)):
            if self.clock is not None:
                self.clock.now_s += self.chunk_s
            self.timing.emit("token2mel", self.turn_id, 0, 3_000_000)
            yield ReplyAudio(self.turn_id, chunk, RATE, index)
        codes = self.codes if self.forgetful else (*self.codes[:-1], self.turn_id)
        yield ReplyDone(self.turn_id, reply, "stop", "", codes, len(self.pcm))


def _tone(samples: int = 15 * SAMPLES_PER_CODE) -> Pcm:
    return (0.1 * np.sin(np.arange(samples) * 0.1)).astype(np.float32)


def _bench(engine: ScriptedEngine, **options: Any) -> Any:
    return run_bench(cast(Engine, engine), np.zeros(4000, np.float32), runs=3, warm_up=1, **options)


def test_times_are_those_of_the_counted_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SteppedTime()
    monkeypatch.setattr(replies, "time", clock)
    engine = ScriptedEngine(_tone(), clock)
    done: list[float] = []
    report = _bench(engine, progress=done.append)
    assert done == [1, 2, 3, 4]
    assert (report.replies, len(report.warm_up_ttfa_ms)) == (3, 1)
    metrics = report.metrics
    assert metrics["ttfa_ms"].runs == 3
    assert metrics["ttfa_ms"].p50 == pytest.approx(10.0)
    assert metrics["rtf_total"].p50 == pytest.approx(0.03 / 1.2)
    assert metrics["rtf_steady"].runs == 3
    assert metrics["rtf_steady"].p50 == pytest.approx(0.02 / 0.8)
    assert metrics["first_chunk_ratio"].p50 == pytest.approx(0.01 / 0.4)
    assert metrics["token2mel_ms"].p50 == 3
    assert metrics["tokens_at_commit"].mean == 7
    assert metrics["prefill_tokens"].max == 7
    assert metrics["reply_s"].mean == pytest.approx(1.2)


def test_speech_is_pushed_as_a_microphone_would() -> None:
    engine = ScriptedEngine(_tone())
    _bench(engine)
    assert set(engine.pushed) == {1280, 4000 % 1280}


@pytest.mark.parametrize(
    ("pcm", "expected"),
    [
        (np.zeros(15 * SAMPLES_PER_CODE, np.float32), "silent"),
        (np.full(15 * SAMPLES_PER_CODE, np.nan, np.float32), "not finite"),
        (_tone(100), "100 samples where 28800 were expected"),
    ],
)
def test_no_time_is_given_for_a_wrong_reply(pcm: Pcm, expected: str) -> None:
    with pytest.raises(BenchError, match=expected):
        _bench(ScriptedEngine(pcm))


def test_no_time_is_given_where_the_seed_does_not_hold() -> None:
    with pytest.raises(BenchError, match="Reply 2 differs"):
        _bench(ScriptedEngine(_tone(), forgetful=False))


@dataclass
class FailingEngine(ScriptedEngine):
    """Refuses the turn of this number."""

    refused: int = 0

    def open_turn(self, conversation: object, turn_id: int, reply: Modality) -> Task[ScriptedEngine]:
        if turn_id == self.refused:
            raise FlowCacheError("The caches are full.", "Wait.")
        return super().open_turn(conversation, turn_id, reply)


def test_an_error_after_some_replies_does_not_lose_them() -> None:
    report = _bench(FailingEngine(_tone(), refused=4))
    assert report.replies == report.metrics["ttfa_ms"].runs == 2
    assert isinstance(report.failure, FlowCacheError)
    with pytest.raises(FlowCacheError):
        _bench(FailingEngine(_tone(), refused=2))


class CountedBus(TimingBus):
    """Counts its listeners."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners = 0

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        unsubscribe = super().subscribe(listener)
        self.listeners += 1

        def leave() -> None:
            unsubscribe()
            self.listeners -= 1

        return leave


def test_listeners_are_removed_again() -> None:
    bus = CountedBus()
    engine = ScriptedEngine(_tone(), timing=bus)
    _bench(engine)
    assert bus.listeners == 0
    assert engine.open_conversations == 0


def test_a_summary_is_that_of_its_values() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 100.0]
    summary = summarize(values)
    assert (summary.min, summary.p50, summary.max, summary.runs) == (1, 3, 100, 5)
    assert summary.mean == 22
    assert summary.std == pytest.approx(statistics.stdev(values))
    assert summary.p95 == pytest.approx(80.8)
    assert summarize([5.0]).std == 0


def test_levels_are_relative_to_full_scale() -> None:
    assert level_dbfs(np.ones(10, np.float32)) == pytest.approx(0)
    assert level_dbfs(np.full(10, 0.1, np.float32)) == pytest.approx(-20, abs=1e-4)
    assert level_dbfs(np.zeros(0, np.float32)) < -200


def _event(name: str, ms: float, **attributes: float) -> TimingEvent:
    return TimingEvent(name, 1, 0, round(ms * 1e6), "engine", dict(attributes))


def _reply(ttfa_ms: float) -> MeasuredReply:
    first = [_event("prefill", 10), *[_event("step", 5, sampling_ms=1)] * 4, _event("commit", 0)]
    first += [_event("token2mel", 20), _event("vocoder", 30)]
    later = [*[_event("step", 5, sampling_ms=1)] * 6, _event("token2mel", 100)]
    values = {"ttfa_ms": [ttfa_ms], "first_chunk_ms": [50.0], "rtf_total": [0.1], "reply_s": [1.2]}
    complete = TimesFromCommit.of(0.2, first + later)
    return MeasuredReply(
        (1, 2), np.zeros(2, np.float32), values, TimesFromCommit.of(ttfa_ms / 1000, first), complete
    )


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
    rows = runs_section(_report(FlowCacheError("The caches are full.", "Wait."))).rows
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
        *parts, total = [number(row[column]) for row in section.rows]
        assert sum(parts) == pytest.approx(total) == pytest.approx(whole)
    # The codec runs beside later steps: 10 + 50 + 120 + 30 ms in 200 ms.
    assert [row["reply_ms"] for row in section.rows[-3:-1]] == pytest.approx([0.0, -10.0])
