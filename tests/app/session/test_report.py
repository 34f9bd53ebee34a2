"""The report of a conversation agrees with its events; a trace holds all of its timings."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from app.audio.echo_cancellation import EchoMeasurement
from app.session.events import (
    Counters,
    EchoMeasured,
    EngineReady,
    Event,
    ReplyCut,
    ReplyFinished,
    SpeculationMeasured,
    SpeculationStats,
    Timing,
    TurnCommitted,
)
from app.session.report import ConversationReport, write_chrome_trace, write_csv
from engine_runtime.errors import ExportError
from engine_runtime.timing import TimingEvent
from engine_runtime.types import Modality

EVENTS = [
    TimingEvent("step", 1, 2_000_000, 500_000, "engine", {"index": 0, "mode": "audio"}),
    TimingEvent("prefill", 1, 1_000_000, 750_000, "engine", {"tokens": 12}),
    TimingEvent("commit", 1, 1_900_000, 0, "engine"),
    TimingEvent("playback_buffer", 1, 3_000_000, 0, "dialog", {"level_ms": 321.5}),
]


def timing(name: str, ms: float, **attributes: float | int | str) -> Timing:
    return Timing(TimingEvent(name, 1, 0, round(ms * 1e6), "engine", attributes))


def test_timings_of_a_turn_that_was_reopened() -> None:
    report = ConversationReport()
    first = [
        timing("prefill", 5, phase="listen", tokens=10, cached_tokens=0),
        timing("commit", 0),
        timing("endpointing", 600, reason="likely", silence_ms=256.0),
        timing("prefill", 3, phase="commit", tokens=6, cached_tokens=10, tokens_at_commit=6),
        timing("step", 90),
        timing("first_audio", 999),
    ]
    second = [
        timing("prefill", 7, phase="listen", tokens=4, cached_tokens=10),
        timing("endpointing", 650, reason="silence", silence_ms=640.0),
        timing("commit", 0),
        timing("prefill", 2, phase="commit", tokens=5, cached_tokens=14, tokens_at_commit=5),
        timing("step", 2),
        timing("step", 4),
        timing("token2mel", 10, chunk=0),
        timing("vocoder", 20, chunk=0),
        timing("first_audio", 123.4567),
        timing("playback_hold", 30, reason="pace", target_ms=20.0),
        timing("voice_to_voice", 800),
        timing("reply", 400, audio_s=1.0, rtf_total=0.4, rtf_steady=0.3, first_chunk_ratio=0.5),
    ]
    events: list[Event] = [EngineReady("nano", 1.0, 16_000, 24_000), TurnCommitted(1, 0.5, 1.0), *first]
    for event in events:
        report.add(event)
    speculation = SpeculationMeasured(SpeculationStats(None, 3, 2, 1, 123.45678, 0.4, 9, 12.0))
    echo = EchoMeasurement("cancelling", 12.0, 30.0, 85.0, 20.0, 0.1)
    events = [TurnCommitted(1, 1.5, 1.0), *second, Counters(2, 0), EchoMeasured(echo), speculation]
    for event in events:
        report.add(event)
    report.add(ReplyFinished(1, Modality.SPEECH, 1.0, "five", 20, 12, "stop"))
    assert report.document() == {
        "bundle": "nano",
        "turns": [
            {
                "user": {"start_s": 1.0, "end_s": 2.5, "codes": 20, "text": ""},
                "reply": {
                    "modality": "speech", "text": "five", "codes": 12, "audio_s": 1.0,
                    "finish_reason": "stop", "cut": None,
                },
                "timings": {
                    "prefill_ms": 14.0, "prefill_speaking_ms": 6.0, "prefill_at_commit_ms": 2.0,
                    "prefill_tokens": 19, "tokens_at_commit": 5, "step_ms": 3.0,
                    "token2mel_ms": 10.0, "vocoder_ms": 20.0, "ttfa_ms": 123.457, "endpointing_ms": 650.0,
                    "playback_hold_ms": 30.0, "playback_hold_reason": "pace", "confirm_to_sound_ms": None,
                    "voice_to_voice_ms": 800.0, "rtf_total": 0.4, "rtf_steady": 0.3, "first_chunk_ratio": 0.5,
                },
            }
        ],
        "decisions": [],
        "speculation": {
            "off_reason": None, "speculated": 3, "confirmed": 2, "rolled_back": 1, "engine_ms": 123.4568,
            "audio_s": 0.4, "steps": 9, "roll_back_ms": 12.0,
        },
        "underruns": 2,
        "echo": {
            "state": "cancelling", "erl_db": 12.0, "erle_db": 30.0, "delay_ms": 85.0, "drift_ppm": 20.0,
            "frame_ms": 0.1,
        },
    }  # fmt: skip


def test_the_decisions_are_listed_in_order_also_those_about_dropped_turns() -> None:
    report = ConversationReport()
    report.add(timing("decision", 0, kind="pause", at_s=1.23456, silence_ms=160.0))
    rated: dict[str, float | int | str] = {
        "silence_ms": 224.0,
        "probability": 0.98765,
        "stage": "likely",
        "cost_ms": 45.5,
    }
    report.add(timing("decision", 0, kind="pause", at_s=1.3, **rated))
    report.add(timing("step", 2))
    report.add(timing("decision", 0, kind="confirm", at_s=1.4, silence_ms=256.0, reason="likely"))
    assert report.document()["decisions"] == [
        {"kind": "pause", "turn": 1, "at_s": 1.2346, "silence_ms": 160.0},
        {
            "kind": "pause", "turn": 1, "at_s": 1.3, "silence_ms": 224.0, "probability": 0.9877,
            "stage": "likely", "cost_ms": 45.5,
        },
        {"kind": "confirm", "turn": 1, "at_s": 1.4, "silence_ms": 256.0, "reason": "likely"},
    ]  # fmt: skip


def test_a_turn_without_a_reply_is_not_in_the_report() -> None:
    report = ConversationReport()
    report.add(TurnCommitted(1, 0.5))
    assert report.has_turns
    assert report.document()["turns"] == []


def test_a_reply_that_was_cut_is_there_as_far_as_it_was_heard() -> None:
    report = ConversationReport()
    for turn_id in (1, 2):
        report.add(TurnCommitted(turn_id, 0.5))
    report.add(ReplyFinished(1, Modality.SPEECH, 4.0, "two plus three", 20, 50, "stop"))
    report.add(ReplyCut(1, "barge_in", Modality.SPEECH, "two", " plus three", 1.25, 4.0, 20, 16))
    report.add(ReplyCut(2, "error", Modality.SPEECH, "", "never said", 0.0, 0.4, 9, 0))
    first, second = report.document()["turns"]
    assert first["user"]["codes"] == 20
    assert first["reply"] == {
        "modality": "speech", "text": "two", "codes": 16, "audio_s": 1.25, "finish_reason": "cancelled",
        "cut": {"reason": "barge_in", "unheard_text": " plus three", "made_s": 4.0},
    }  # fmt: skip
    assert second["user"]["codes"] == 9
    assert second["reply"]["cut"] == {"reason": "error", "unheard_text": "never said", "made_s": 0.4}


def test_what_was_not_measured_is_null() -> None:
    report = ConversationReport()
    report.add(TurnCommitted(1, 0.0))
    report.add(ReplyFinished(1, Modality.TEXT, 0.0, "five", 0, 0, "stop"))
    timings = report.document()["turns"][0]["timings"]
    assert timings.pop("prefill_tokens") == 0
    assert timings.pop("tokens_at_commit") == 0
    assert set(timings.values()) == {None}


def test_csv_has_a_line_per_event_and_a_column_per_attribute(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", EVENTS)
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["prefill", "commit", "step", "playback_buffer"]
    assert rows[0] == {
        "name": "prefill", "turn_id": "1", "start_ms": "0.000", "duration_ms": "0.750", "thread": "engine",
        "tokens": "12", "index": "", "mode": "", "level_ms": "",
    }  # fmt: skip
    assert rows[2]["start_ms"] == "1.000"


def test_chrome_trace_has_spans_instants_and_a_counter(tmp_path: Path) -> None:
    write_chrome_trace(tmp_path / "t.json", EVENTS)
    entries = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert [entry["ph"] for entry in entries] == ["M", "M", "X", "i", "X", "C"]
    assert {entry["args"]["name"]: entry["tid"] for entry in entries[:2]} == {"engine": 1, "dialog": 2}
    prefill, commit, step, level = entries[2:]
    assert (prefill["ts"], prefill["dur"], prefill["args"]) == (0.0, 750.0, {"turn_id": 1, "tokens": 12})
    assert commit["ts"] == 900.0
    assert step["cat"] == "turn 1"
    assert level["args"] == {"ms": 321.5}


def test_nothing_measured_is_an_empty_file(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", [])
    write_chrome_trace(tmp_path / "t.json", [])
    assert (tmp_path / "t.csv").read_text() == "name,turn_id,start_ms,duration_ms,thread\n"
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"] == []


def test_a_missing_folder_is_an_export_error(tmp_path: Path) -> None:
    for write in (write_csv, write_chrome_trace):
        with pytest.raises(ExportError, match="no folder"):
            write(tmp_path / "missing" / "t", EVENTS)
