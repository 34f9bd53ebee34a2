"""Stages of a reply, as the timings event describes them."""

from __future__ import annotations

from app.server.response import described_figures, described_stages
from engine_runtime.timing import TimingEvent

MS = 1_000_000


def event(name: str, start_ms: float, length_ms: float, **attributes: float | int | str) -> TimingEvent:
    return TimingEvent(name, 3, round(start_ms * MS), round(length_ms * MS), "engine", attributes)


def test_stages_start_after_the_request() -> None:
    """The request came 20 ms before the commit."""
    events = [
        event("commit", 1_000, 0),
        event("prefill", 1_001, 30, tokens=12, tokens_at_commit=2, phase="commit"),
        event("step", 1_031.25, 4.5, index=0, mode="audio"),
        event("first_audio", 1_000, 80),
        event("vocoder", 1_070, 8, audio_ms=400.0, chunk=0),
    ]
    assert described_stages(events, 100.0) == [
        {"name": "prefill", "start_ms": 21.0, "ms": 30.0, "tokens": 12, "tokens_at_commit": 2},
        {"name": "step", "start_ms": 51.25, "ms": 4.5},
        {"name": "vocoder", "start_ms": 90.0, "ms": 8.0, "audio_ms": 400.0},
    ]


def test_the_figures_of_the_reply() -> None:
    whole = event("reply", 1_000, 400, rtf_total=0.25, rtf_steady=0.12345, flow_steps=6, finish_reason="stop")
    figures = {"rtf_total": 0.25, "rtf_steady": 0.123, "flow_steps": 6}
    assert described_figures([event("step", 1_000, 4), whole]) == figures
    assert described_figures([]) == {}


def test_without_sound_there_are_none() -> None:
    assert described_stages([event("step", 1_000, 4)], 100.0) == []
