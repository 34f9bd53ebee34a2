"""The curve of cut-offs against latency, from pauses made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from app.duplex.cut_off_curve import SILENCES_MS, CurvePoint, measure_curve
from app.duplex.measures import Share
from app.duplex.segments import UserSegment
from app.duplex.simulator import DuplexRecord
from engine_runtime.timing import TimingEvent


def answer(at_s: float, silence_ms: float, probability: float, kind: str = "pause") -> TimingEvent:
    details: dict[str, float | int | str] = {
        "kind": kind,
        "at_s": at_s,
        "silence_ms": silence_ms,
        "probability": probability,
    }
    return TimingEvent("decision", 1, 0, 0, "dialog", details)


def curve(*turns: tuple[UserSegment, list[TimingEvent]]) -> dict[str, CurvePoint]:
    nothing = np.zeros(0, dtype=np.float32)
    record = DuplexRecord("x", "pauses", nothing, nothing, tuple(segment for segment, _ in turns))
    record.decisions = [event for _, events in turns for event in events]
    return {point.name: point for point in measure_curve([record], 640)}


def paused(
    probability: float, at_end: float, again: float | None = None, from_s: float = 0.0
) -> tuple[UserSegment, list[TimingEvent]]:
    """A turn with a pause of 0.7 s, and what the detector says in the pause and at the end."""
    events = [answer(from_s + 2.2, 200, probability), answer(from_s + 4.2, 200, at_end)]
    if again is not None:
        events.append(answer(from_s + 5.25, 1_250, again))
    return UserSegment("turn", from_s + 1.0, from_s + 4.0, ((from_s + 2.0, from_s + 2.7),)), events


def test_silence_alone_cuts_off_what_is_longer() -> None:
    points = curve(paused(0.1, 0.99))
    assert [points[f"silence {silence}"].cut_off.hits for silence in SILENCES_MS] == [
        1,
        1,
        1,
        1,
        1,
        0,
        0,
        0,
        0,
    ]
    assert points["silence 640"].wait_ms == 640


def test_the_detector_waits_in_the_pause_and_is_quick_at_the_end() -> None:
    points = curve(paused(0.1, 0.99))
    assert points["balanced"].cut_off == Share(0, 1)
    assert points["balanced"].wait_ms == 350
    assert points["balanced"].vad_cut_off == 1.0  # silence alone of 350 ms cuts off
    assert curve(paused(0.95, 0.99))["balanced"].cut_off == Share(1, 1)
    assert curve(paused(0.85, 0.99))["balanced"].cut_off == Share(0, 1)  # open: 985 ms
    assert curve(paused(0.97, 0.99))["patient"].cut_off == Share(1, 1)


def test_the_first_answer_decides() -> None:
    assert curve(paused(0.1, 0.2, again=0.95))["balanced"].wait_ms == 1_100
    assert curve(paused(0.1, 0.99, again=0.1))["balanced"].wait_ms == 350


def test_the_language_model_has_points_of_its_own() -> None:
    segment, events = paused(0.85, 0.5)
    assert "balanced + model" not in curve((segment, events))
    in_pause, at_end = answer(2.3, 300, 0.1, "predict"), answer(4.3, 300, 0.9, "predict")
    early = answer(4.13, 130, 0.95, "predict")
    points = curve((segment, [*events, in_pause, at_end]))
    assert points["eager"].cut_off == Share(1, 1)
    assert points["eager + model"].cut_off == Share(0, 1)
    assert (points["balanced"].wait_ms, points["balanced + model"].wait_ms) == (1_100, 300)
    assert points["patient + model"].wait_ms == 352  # and not one frame more
    # Where it is sure, nothing is awaited, until the detector contradicts in time.
    segment, events = paused(0.85, 0.2)
    assert curve((segment, [*events, in_pause, early]))["balanced + model"].wait_ms == 350
    events[-1] = answer(4.3, 300, 0.2)
    assert curve((segment, [*events, in_pause, early]))["balanced + model"].wait_ms == 224
    # What comes after the commit changes nothing.
    late = curve((segment, [*events, answer(5.1, 1_100, 0.1, "predict")]))
    assert late["balanced + model"].wait_ms == late["balanced"].wait_ms


def test_without_an_answer_silence_decides() -> None:
    segment, _ = paused(0.1, 0.1)
    assert curve((segment, []))["eager"].wait_ms == 640


def test_between_two_silences_the_rate_is_interpolated() -> None:
    points = curve(paused(0.1, 0.99), paused(0.1, 0.9, from_s=10))  # 350 and 742 ms
    assert points["balanced"].wait_ms == pytest.approx(546, abs=1)
    assert points["balanced"].vad_cut_off == 1.0
    assert curve(paused(0.1, 0.9), paused(0.1, 0.2, again=0.99, from_s=10))["balanced"].vad_cut_off == 0.0


def test_there_is_no_curve_without_pauses() -> None:
    assert curve((UserSegment("turn", 1.0, 2.0), [])) == {}
