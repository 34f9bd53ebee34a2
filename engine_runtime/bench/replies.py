"""Measures complete replies to one spoken question, with the times of every stage, and verifies each reply.

In: a loaded engine and a question. Out: a `BenchReport`: for each metric its definition, mean, deviation and
percentiles, without the warm-up replies, and every reply by itself; and tables of it. Stage times
come from the engine's timing bus; TTFA and RTF are measured here, outside of the engine. Runs in the thread
of its caller.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from engine_runtime.bench.measuring import (
    BenchError,
    Summary,
    check_sound,
    deviation,
    summarize,
    summary_section,
)
from engine_runtime.errors import MossVoiceError
from engine_runtime.table import Section
from engine_runtime.timing import TimingEvent
from engine_runtime.types import Modality, Pcm, ReplyAudio, ReplyDone, SamplingParams
from engine_runtime.work import run_alone

if TYPE_CHECKING:
    from engine_runtime.engine import Engine

_PUSH_MS = 80

DEFINITIONS = {
    "encode_ms": "one call of the speech encoder while the user speaks",
    "exact_encode_ms": "encoding the complete question again at the commit (--exact-encoding)",
    "changed_codes": "codes changed by --exact-encoding at the commit",
    "prefill_ms": "one prefill call of the language model",
    "prefill_tokens": "tokens of one prefill call",
    "tokens_at_commit": "rows left to prefill when the user's turn ends",
    "prefill_tokens_per_s": "rows of all prefill calls of one reply / their time",
    "step_ms": "one decode step of the language model, sampling included",
    "sampling_ms": "the part of it that samples on the host",
    "decode_tokens_per_s": "decode steps of one reply / their time",
    "token2mel_ms": "flow matching of one chunk",
    "vocoder_ms": "vocoder of one chunk",
    "first_chunk_ms": "flow matching and vocoder of the first chunk",
    "ttfa_ms": "commit of the turn to the first PCM sample ready",
    "rtf_total": "wall time of the complete reply / its audio",
    "rtf_steady": "wall time of the chunks after the first / their audio",
    "first_chunk_ratio": "TTFA / audio of the first chunk",
    "reply_s": "audio of one reply",
    "gap_ms": "silence within one reply if it were played in real time from its first chunk on",
}
_STAGE_TIMES = {
    "encode": "encode_ms",
    "prefill": "prefill_ms",
    "step": "step_ms",
    "token2mel": "token2mel_ms",
    "vocoder": "vocoder_ms",
}
_STAGE_ATTRIBUTES = {
    "prefill": {"tokens": "prefill_tokens", "tokens_at_commit": "tokens_at_commit"},
    "step": {"sampling_ms": "sampling_ms"},
}


@dataclass(slots=True)
class TimesFromCommit:
    """Milliseconds of one reply from the commit on: in all (`wall_ms`), of each stage by its name on the
    timing bus, and of sampling on the host, which is part of "step". `steps`: number of decode steps."""

    wall_ms: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    sampling_ms: float = 0.0
    steps: int = 0

    @classmethod
    def of(cls, wall_s: float, events: Sequence[TimingEvent]) -> TimesFromCommit:
        """Sums over the events."""
        times = cls(wall_s * 1000)
        for event in events:
            if event.name in _STAGE_TIMES:
                times.stages[event.name] = times.stages.get(event.name, 0.0) + event.duration_ms
            if event.name == "step":
                times.steps += 1
                times.sampling_ms += float(event.attributes.get("sampling_ms", 0.0))
        return times


@dataclass(slots=True)
class MeasuredReply:
    """One measured reply. `to_first`: until its first PCM sample was ready; `complete`: until its last."""

    codes: tuple[int, ...]
    pcm: Pcm
    values: dict[str, list[float]]
    to_first: TimesFromCommit
    complete: TimesFromCommit


@dataclass(slots=True)
class BenchReport:
    """The results. `warm_up_ttfa_ms`: TTFA of the warm-up replies, which are not in `metrics`. `runs`: every
    reply in order, those of the warm-up first."""

    metrics: dict[str, Summary]
    warm_up_ttfa_ms: list[float]
    replies: int
    codes_per_reply: int
    runs: list[MeasuredReply]
    values: dict[str, list[float]] = field(default_factory=dict)
    failure: MossVoiceError | None = None
    """Why there are fewer replies than were asked for."""

    @property
    def warm_up(self) -> int:
        """Number of warm-up replies."""
        return len(self.runs) - self.replies


def run_bench(
    engine: Engine,
    question: Pcm,
    *,
    runs: int = 10,
    warm_up: int = 2,
    params: SamplingParams | None = None,
    progress: Callable[[float], None] = lambda done: None,
) -> BenchReport:
    """Ask `question` (at the engine's input rate) `warm_up + runs` times, each in a new conversation.

    `progress` receives the number of finished replies. Raises BenchError if a reply is not finite, silent, of
    the wrong length or differs between two runs with the same seed. Any other error ends the measurement, and
    is raised only if no reply was measured.
    """
    if runs < 1:
        raise BenchError("A measurement needs at least one run; give --runs 1 or more.")
    replies: list[MeasuredReply] = []
    failure: MossVoiceError | None = None
    for turn_id in range(1, warm_up + runs + 1):
        try:
            reply = measure_reply(engine, question, turn_id, params)
        except BenchError:
            raise
        except MossVoiceError as error:
            if len(replies) <= warm_up:
                raise
            failure = error
            break
        if replies and reply.codes != replies[0].codes:
            raise BenchError(
                "Reply {turn_id} differs from the first one although question and seed are the same.",
                "No times are reported; the engine keeps state from one conversation to the next.",
                turn_id=turn_id,
            )
        replies.append(reply)
        progress(turn_id)
    counted = replies[warm_up:]
    values = {
        name: found
        for name in DEFINITIONS
        if (found := [value for reply in counted for value in reply.values.get(name, [])])
    }
    return BenchReport(
        metrics={name: summarize(found) for name, found in values.items()},
        warm_up_ttfa_ms=[reply.values["ttfa_ms"][0] for reply in replies[:warm_up]],
        replies=len(counted),
        codes_per_reply=len(counted[0].codes),
        runs=replies,
        values=values,
        failure=failure,
    )


def measure_reply(
    engine: Engine,
    question: Pcm,
    turn_id: int,
    params: SamplingParams | None = None,
    *,
    while_spoken: bool = True,
) -> MeasuredReply:
    """One turn and its spoken reply. Raises BenchError as `run_bench`, apart from comparing replies.

    The question is pushed in blocks as from a microphone, before the clock starts; without `while_spoken` all
    at once after it has started, so that nothing is encoded or prefilled before the commit.
    """
    events: list[TimingEvent] = []
    unsubscribe = engine.timing.subscribe(events.append)
    params = (engine.bundle.lm.sampling_speech if params is None else params).seeded()
    conversation = engine.new_conversation()
    try:
        turn = run_alone(engine.open_turn(conversation, turn_id, Modality.SPEECH))
        block = engine.input_sample_rate * _PUSH_MS // 1000 if while_spoken else max(len(question), 1)
        committed, before = time.perf_counter(), len(events)
        for start in range(0, len(question), block):
            run_alone(turn.push(question[start : start + block]))
        chunks: list[tuple[float, Pcm]] = []
        done: ReplyDone | None = None
        until_first = 0
        if while_spoken:
            committed, before = time.perf_counter(), len(events)
        for event in run_alone(turn.commit(Modality.SPEECH, params)):
            if isinstance(event, ReplyAudio):
                chunks.append((time.perf_counter(), event.pcm))
                until_first = until_first or len(events)
            elif isinstance(event, ReplyDone):
                done = event
        finished = time.perf_counter()
    finally:
        unsubscribe()
        engine.end_conversation(conversation)
    if done is None or not chunks:
        raise BenchError(
            "The engine returned no speech for the question.", "No times are reported; try another question."
        )
    pcm = np.concatenate([chunk for _, chunk in chunks])
    values = _stage_values(events)
    values |= _latencies(committed, finished, chunks, engine.output_sample_rate)
    to_first = TimesFromCommit.of(chunks[0][0] - committed, events[before:until_first])
    values["first_chunk_ms"] = [to_first.stages.get("token2mel", 0.0) + to_first.stages.get("vocoder", 0.0)]
    complete = TimesFromCommit.of(finished - committed, events[before:])
    reply = MeasuredReply(done.codes, pcm, values, to_first, complete)
    check_sound("The reply", pcm, len(reply.codes) * engine.bundle.samples_per_code)
    return reply


def _stage_values(events: Sequence[TimingEvent]) -> dict[str, list[float]]:
    """The times of every call by the name of the figure, and rates over all calls of the reply."""
    values: dict[str, list[float]] = {}
    for event in events:
        if "exact" in event.attributes:
            values.setdefault("exact_encode_ms", []).append(event.duration_ms)
            values.setdefault("changed_codes", []).append(float(event.attributes["changed_codes"]))
        elif event.name in _STAGE_TIMES:
            values.setdefault(_STAGE_TIMES[event.name], []).append(event.duration_ms)
        for attribute, name in _STAGE_ATTRIBUTES.get(event.name, {}).items():
            if attribute in event.attributes:
                values.setdefault(name, []).append(float(event.attributes[attribute]))
    prefill_ms, steps_ms = sum(values.get("prefill_ms", [])), values.get("step_ms", [])
    if prefill_ms > 0:
        values["prefill_tokens_per_s"] = [sum(values.get("prefill_tokens", [])) / prefill_ms * 1000]
    if sum(steps_ms) > 0:
        values["decode_tokens_per_s"] = [len(steps_ms) / sum(steps_ms) * 1000]
    return values


def _latencies(
    committed: float, finished: float, chunks: Sequence[tuple[float, Pcm]], sample_rate: int
) -> dict[str, list[float]]:
    """TTFA and the three ratios, from the time of each chunk."""
    audio_s = [len(pcm) / sample_rate for _, pcm in chunks]
    first = chunks[0][0] - committed
    after_first_s = sum(audio_s[1:])
    steady = [(chunks[-1][0] - chunks[0][0]) / after_first_s] if after_first_s > 0 else []
    return {
        "ttfa_ms": [first * 1000],
        "rtf_total": [(finished - committed) / sum(audio_s)],
        "rtf_steady": steady,
        "first_chunk_ratio": [first / audio_s[0]],
        "reply_s": [sum(audio_s)],
        "gap_ms": [_gap_s([made - chunks[0][0] for made, _ in chunks], audio_s) * 1000],
    }


def _gap_s(made_s: Sequence[float], audio_s: Sequence[float]) -> float:
    """Silence in s if chunks that became ready at `made_s` are played in real time from 0 on."""
    played_until, gap = 0.0, 0.0
    for made, audio in zip(made_s, audio_s, strict=True):
        gap += max(made - played_until, 0.0)
        played_until = max(played_until, made) + audio
    return gap


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
    "std": deviation,
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
    return summary_section("replies", report.metrics, DEFINITIONS)


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
