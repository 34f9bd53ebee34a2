"""The report counts the stages of heard replies only, not those of discarded ones."""

from __future__ import annotations

from app.audio.echo_cancellation import EchoMeasurement
from app.session.events import (
    Counters,
    EchoMeasured,
    EngineReady,
    ReplyCut,
    ReplyFinished,
    SpeculationMeasured,
    Timing,
    TurnCommitted,
)
from app.session.report import ConversationReport
from app.session.speculation_policy import SpeculationStats
from engine_runtime.timing import TimingEvent
from engine_runtime.types import Modality


def timing(name: str, ms: float, **attributes: float | int | str) -> Timing:
    return Timing(TimingEvent(name, 1, 0, round(ms * 1e6), "engine", attributes))


def test_timings_of_a_turn_that_was_reopened() -> None:
    report = ConversationReport()
    first = [
        timing("prefill", 5, phase="listen", rows=10, cached_rows=0),
        timing("commit", 0),
        timing("endpointing", 600, reason="likely", silence_ms=256.0),
        timing("prefill", 3, phase="commit", rows=6, cached_rows=10, rows_at_commit=6),
        timing("step", 90),
        timing("first_audio", 999),
    ]
    second = [
        timing("prefill", 7, phase="listen", rows=4, cached_rows=10),
        timing("endpointing", 650, reason="silence", silence_ms=640.0),
        timing("commit", 0),
        timing("prefill", 2, phase="commit", rows=5, cached_rows=14, rows_at_commit=5),
        timing("step", 2),
        timing("step", 4),
        timing("token2mel", 10, chunk=0),
        timing("vocoder", 20, chunk=0),
        timing("first_audio", 123.4567),
        timing("playback_hold", 30, reason="pace", target_ms=20.0),
        timing("voice_to_voice", 800),
        timing("reply", 400, audio_s=1.0, rtf_total=0.4, rtf_steady=0.3, first_chunk_ratio=0.5),
    ]
    for event in [EngineReady("nano", 1.0, 16_000, 24_000), TurnCommitted(1, 0.5, 1.0), *first]:
        report.add(event)
    speculation = SpeculationMeasured(SpeculationStats(None, 3, 2, 1, 123.45678, 0.4, 9, 12.0))
    echo = EchoMeasurement("cancelling", 12.0, 30.0, 85.0, 20.0, 0.1)
    for event in [TurnCommitted(1, 1.5, 1.0), *second, Counters(2, 0), EchoMeasured(echo), speculation]:
        report.add(event)
    report.add(ReplyFinished(1, Modality.SPEECH, 1.0, "five", 20, 12, "stop"))
    assert report.document() == {
        "bundle": "nano",
        "turns": [
            {
                "user": {"start_s": 1.0, "end_s": 2.5, "codes": 20},
                "reply": {
                    "modality": "speech", "text": "five", "codes": 12, "audio_s": 1.0,
                    "finish_reason": "stop", "cut": None,
                },
                "timings": {
                    "prefill_ms": 14.0, "prefill_rows": 19, "rows_at_commit": 5, "step_ms": 3.0,
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
    rated = {"silence_ms": 224.0, "probability": 0.98765, "stage": "likely", "cost_ms": 45.5}
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
    assert timings.pop("prefill_rows") == 0
    assert timings.pop("rows_at_commit") == 0
    assert set(timings.values()) == {None}
