"""Where the time of a reply went, for the timings event of its response.

In: timing events of the reply. Out: JSON. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.server.protocol import Json
from engine_runtime.timing import REPLY_FIGURES, REPLY_STAGES, STAGE_FIGURES, TimingEvent


def described_figures(events: Sequence[TimingEvent]) -> Json:
    """The real-time factors of the reply, the ratio of its first chunk and its flow steps, as far as they are
    known."""
    whole = next((event.attributes for event in events if event.name == "reply"), {})
    return {name: round(float(whole[name]), 3) for name in REPLY_FIGURES if name in whole}


def described_stages(events: Sequence[TimingEvent], ttfa_ms: float) -> list[Json]:
    """Name, start and duration of each stage, in ms after the request whose first audio came after `ttfa_ms`;
    nothing without that first audio among the events."""
    first = next((event for event in events if event.name == "first_audio"), None)
    if first is None:
        return []
    asked_ms = (first.start_ns + first.duration_ns) / 1e6 - ttfa_ms
    described: list[Json] = []
    for event in events:
        if event.name in REPLY_STAGES:
            figures = {name: event.attributes[name] for name in STAGE_FIGURES if name in event.attributes}
            start_ms = max(event.start_ns / 1e6 - asked_ms, 0.0)
            described.append(
                {"name": event.name, "start_ms": round(start_ms, 2), "ms": round(event.duration_ms, 3)}
                | figures
            )
    return described
