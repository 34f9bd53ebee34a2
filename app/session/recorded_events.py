"""Reads the transcript of a recorded conversation, and how to continue it.

In: the folder of a conversation. Out: events as they were emitted, without meters and timings, of turns that
are still part of it; a ContinueConversation. Any thread. Raises RecordError.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.audio.growing_wav import frames_of
from app.session.commands import ContinueConversation
from app.session.conversation_folder import SOUND, read_events, read_history
from app.session.events import (
    Event,
    PlaybackFinished,
    PlaybackStarted,
    ReplyCut,
    ReplyFinished,
    ReplyTextDelta,
    TurnCancelled,
    TurnCommitted,
    TurnExtended,
    TurnOpened,
    TurnsRemoved,
)
from engine_runtime.types import Modality

_BEFORE_TURN_S = 0.5
"""Longest delay between the first word of a turn and its detection."""
_KINDS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        TurnOpened,
        TurnExtended,
        TurnCommitted,
        TurnCancelled,
        ReplyTextDelta,
        ReplyCut,
        ReplyFinished,
        PlaybackStarted,
        PlaybackFinished,
    )
}


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event, and when it came, in seconds on the line of the recording."""

    t: float
    event: Any


def read_transcript(folder: Path) -> list[RecordedEvent]:
    """The events of all turns that were not removed later, in order."""
    found: list[RecordedEvent] = []
    for entry in read_events(folder):
        kind = entry.get("event")
        if kind == TurnsRemoved.__name__:
            removed = entry.get("turn_ids") or ()
            found = [known for known in found if known.event.turn_id not in removed]
        elif isinstance(kind, str) and kind in _KINDS and (event := revived(_KINDS[kind], entry)) is not None:
            found.append(RecordedEvent(float(entry.get("t", 0.0)), event))
    return found


def spans_of(events: list[RecordedEvent]) -> dict[int, tuple[float, float]]:
    """Where each turn is on the line, in seconds: from the question to the end of its reply."""
    spans: dict[int, tuple[float, float]] = {}
    over: set[int] = set()
    for known in events:
        if known.event.turn_id in over:  # it was played again
            continue
        if isinstance(known.event, PlaybackFinished | TurnCancelled):
            over.add(known.event.turn_id)
        start, end = spans.get(known.event.turn_id, (max(known.t - _BEFORE_TURN_S, 0.0), 0.0))
        spans[known.event.turn_id] = (start, max(end, known.t))
    return spans


def how_to_continue(folder: Path) -> ContinueConversation:
    """The command that continues the conversation."""
    last_turn_id, seconds = 0, 0.0
    for entry in read_events(folder):
        last_turn_id = max(last_turn_id, int(entry.get("turn_id") or 0))
        seconds = max(seconds, float(entry.get("t") or 0.0))
    frames, rate = frames_of(folder / SOUND)
    if rate:
        seconds = max(seconds, frames / rate)
    return ContinueConversation(folder, read_history(folder), last_turn_id, seconds, rate)


def revived(kind: type[Any], entry: dict[str, Any]) -> Any | None:
    """The event or command of a line, None if a field is missing or makes no sense."""
    values = {field.name: entry[field.name] for field in dataclasses.fields(kind) if field.name in entry}
    try:
        if "modality" in values:
            values["modality"] = Modality(values["modality"])
        return kind(**values) if isinstance(values.get("turn_id", 0), int) else None
    except (TypeError, ValueError):
        return None
