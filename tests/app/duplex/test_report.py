"""The report: targets with verdicts, tables, and plain values."""

from __future__ import annotations

import json

import numpy as np

from app.dialog.turn_taking_settings import TurnTakingSettings
from app.duplex.report import DuplexReport, Target, unmet
from app.duplex.room import RATE
from app.duplex.scenario import RoomConditions
from app.duplex.segments import UserSegment
from app.duplex.simulator import DuplexRecord
from engine_runtime.timing import TimingEvent

HEADPHONES = RoomConditions()


def answered(turns: int, latency_s: float, room: RoomConditions = HEADPHONES) -> DuplexRecord:
    """A conversation of 1 s questions, each answered for 2 s."""
    pcm = np.zeros(turns * 10 * RATE, dtype=np.float32)
    segments, timings = [], []
    for turn in range(turns):
        start_s = 10.0 * turn + 1
        segments.append(UserSegment("turn", start_s, start_s + 1))
        first = round((start_s + 1 + latency_s) * RATE)
        pcm[first : first + 2 * RATE] = 0.1
        timings += [
            TimingEvent("voice_to_voice", turn, 0, round(latency_s * 1e9), "dialog"),
            TimingEvent("first_audio", turn, 0, 100_000_000, "engine"),
        ]
    return DuplexRecord("test", "pauses", pcm, pcm, tuple(segments), room, timings=timings)


def test_a_target_is_met_missed_or_not_measured() -> None:
    assert Target("under-runs", 0, 0, True).is_met is True
    assert Target("R_Y", 0.9, 0.97, False).is_met is False
    assert Target("R_Y", None, 0.97, False).is_met is None
    assert Target("R_Y", 0.9, 0.97, False).row() == {
        "target": "R_Y",
        "measured": 0.9,
        "limit": ">= 0.97",
        "result": "NOT MET",
    }
    assert Target("R_Y", None, 0.97, False).row()["result"] == "not measured"


def test_the_sum_of_candidate_pause_and_ttfa_is_the_limit_of_voice_to_voice() -> None:
    report = DuplexReport([answered(12, 0.35)], TurnTakingSettings())
    voice = report.targets[0]
    assert (voice.value, voice.limit, voice.is_met) == (350, 360, True)
    slower = DuplexReport([answered(12, 0.95)], TurnTakingSettings())
    assert [target.name for target in unmet(slower.targets)] == [
        "voice-to-voice p50, ms (pause + TTFA + 100)",
        "voice-to-voice p95, ms",
    ]


def test_a_reply_that_was_cut_has_yielded_however_soon_the_answer_begins() -> None:
    record = answered(12, 0.4)
    stops = tuple(UserSegment("interruption", 10.0 * turn + 3, 10.0 * turn + 3.3) for turn in range(12))
    for turn in range(12):
        first = round((10 * turn + 4.6) * RATE)  # 0.2 s after the reply
        record.assistant[first : first + 2 * RATE] = 0.1
        at_s = 10.0 * turn + 4.39
        record.decisions.append(TimingEvent("decision", turn, 0, 0, "dialog", {"kind": "cut", "at_s": at_s}))
    record.segments = tuple(sorted((*record.segments, *stops), key=lambda segment: segment.start_s))

    def yielded() -> float | None:
        report = DuplexReport([record], TurnTakingSettings())
        return next(target.value for target in report.targets if target.name == "R_Y")

    assert yielded() == 1.0
    record.decisions.clear()
    assert yielded() == 0.0


def test_surroundings_are_apart_and_few_events_have_no_rate() -> None:
    report = DuplexReport(
        [
            answered(12, 0.4),
            answered(3, 0.4, RoomConditions(6.0)),
            answered(3, 0.4, RoomConditions(noise_rms=0.1)),
        ],
        TurnTakingSettings(),
    )
    parts = [part.partition(",")[0] for part, _ in report.sections()]
    assert list(dict.fromkeys(parts)) == [
        "headphones",
        "open loudspeaker: 1 conversations",
        "background noise: 1 conversations",
        "all conversations",
    ]
    shares = [section for _, section in report.sections() if section.title == "shares"]
    answered_rows = [row for section in shares for row in section.rows if row["share of"] == "R_R"]
    assert [(row["rate"], row["hits"], row["events"]) for row in answered_rows] == [
        (1.0, 12, 12),
        (None, 3, 3),
        (None, 3, 3),
    ]


def test_every_share_and_latency_is_defined() -> None:
    for _, section in DuplexReport([answered(12, 0.4)], TurnTakingSettings()).sections():
        if "see below" in section.columns.values():
            first = next(iter(section.columns))
            assert {str(row[first]) for row in section.rows} == section.terms.keys()


def test_the_document_is_plain() -> None:
    report = DuplexReport([answered(12, 0.4)], TurnTakingSettings())
    document = json.loads(json.dumps(report.document()))
    assert document["panels"]["clean"]["shares"]["R_R"] == {"hits": 12, "total": 12}
    assert document["conversations"][0]["segments"] == {"turn": 12}
    assert {target["name"] for target in document["targets"]} >= {"R_Y", "under-runs"}


def test_a_reply_that_is_resumed_has_not_yielded() -> None:
    pcm = np.zeros(120 * RATE, dtype=np.float32)
    segments, decisions = [], []
    for place in range(10):
        start_s = 10.0 * place
        for first_s, last_s in ((1.0, 2.2), (3.0, 5.0)):
            pcm[round((start_s + first_s) * RATE) : round((start_s + last_s) * RATE)] = 0.1
        segments.append(UserSegment("backchannel", start_s + 2.0, start_s + 2.4))
        known: dict[str, float | int | str] = {"kind": "resume", "at_s": start_s + 2.9}
        decisions.append(TimingEvent("decision", place, 0, 0, "dialog", known))
    record = DuplexRecord("test", "backchannels", pcm, pcm, tuple(segments), decisions=decisions)
    targets = {target.name: target.value for target in DuplexReport([record], TurnTakingSettings()).targets}
    assert (targets["S_BC"], targets["S_BC resumed"]) == (0.0, 1.0)


def test_a_gpu_has_a_target_of_its_own() -> None:
    record = answered(12, 0.4)
    names = {target.name for target in DuplexReport([record], TurnTakingSettings(), "cuda").targets}
    assert "confirmed to sound p50, ms" in names
    assert "confirmed to sound p50, ms" not in {
        target.name for target in DuplexReport([record], TurnTakingSettings()).targets
    }
