"""The transcript of a conversation: read from its record, and written as a text for people.

In: the folder of a recorded conversation. Out: events as they were emitted, without meters and timings, of
turns that are still part of it; a ContinueConversation. Raises RecordError.

In: the events of turns, recorded or on show, and the words for both sides. Out: a text, Markdown or plain, or
a file. Raises ExportError. Any thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from app.audio.flac import sound_frames
from app.export import ExportFile
from app.session.commands import ContinueConversation
from app.session.conversation_folder import (
    LARGEST_ID,
    LONGEST_S,
    first_words_of,
    read_events,
    read_history,
    sound_of,
)
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
    TurnTranscribed,
)
from app.session.recorded_values import LONGEST_TEXT, revived

_MOST_OF_TURN = 50
"""Events of a turn that are read; one that was continued ten times, cut and played again has fewer."""
_MOST_TURNS = 20_000
_BEFORE_TURN_S = 0.5
"""Longest delay between the first word of a turn and its detection."""
_KINDS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        TurnOpened,
        TurnExtended,
        TurnCommitted,
        TurnTranscribed,
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
    """The events of all turns that were not removed, in order. The deltas of a reply are one event."""
    found: list[RecordedEvent] = []
    counts: Counter[int] = Counter()
    removed: set[int] = set()
    deltas: dict[int, int] = {}
    """Turn -> place of the text of its reply in `found`."""
    for entry in read_events(folder):
        kind = entry.get("event")
        if kind == TurnsRemoved.__name__ and (gone := revived(TurnsRemoved, entry)) is not None:
            removed.update(gone.turn_ids)
        event = revived(_KINDS[kind], entry) if isinstance(kind, str) and kind in _KINDS else None
        if event is None:
            continue
        turn_id = event.turn_id
        if isinstance(event, TurnExtended):  # the reply begins anew
            deltas.pop(turn_id, None)
        if isinstance(event, ReplyTextDelta) and turn_id in deltas:
            before = found[deltas[turn_id]]
            if len(before.event.text) < LONGEST_TEXT:
                text = (before.event.text + event.text)[:LONGEST_TEXT]
                found[deltas[turn_id]] = replace(before, event=replace(before.event, text=text))
            continue
        is_known = turn_id in counts
        is_too_much = counts[turn_id] >= _MOST_OF_TURN if is_known else len(counts) >= _MOST_TURNS
        if is_too_much or (is_known and isinstance(event, TurnOpened)):
            continue
        counts[turn_id] += 1
        if isinstance(event, ReplyTextDelta):
            deltas[turn_id] = len(found)
        found.append(RecordedEvent(entry["t"], event))
    return [known for known in found if known.event.turn_id not in removed]


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
        gone = revived(TurnsRemoved, entry) if entry.get("event") == TurnsRemoved.__name__ else None
        removed = gone.turn_ids if gone is not None else ()
        last_turn_id = max(last_turn_id, entry.get("turn_id") or 0, *removed)
        seconds = max(seconds, entry["t"])
    sound = sound_of(folder)
    frames, rate = sound_frames(sound) if sound is not None else (0, 0)
    sound_s = frames / rate if rate else 0.0
    seconds, last_turn_id = min(max(seconds, sound_s), LONGEST_S), min(last_turn_id, LARGEST_ID)
    return ContinueConversation(folder, read_history(folder), last_turn_id, seconds, rate, sound_s)


@dataclass(frozen=True, slots=True)
class TurnText:
    """A question and its reply. Speech without a text has a length in seconds instead."""

    question: str = ""
    question_s: float = 0.0
    reply: str = ""
    reply_s: float = 0.0
    """Length of the reply; of one that was cut, the part that was heard."""
    began_s: float | None = None
    """When the question began, in seconds since the conversation did; None if that is not known."""


@dataclass(frozen=True, slots=True)
class Words:
    """The words for both sides in the language of the reader; `spoke` has %1 for a length in seconds."""

    user: str
    assistant: str
    spoke: str


@dataclass(frozen=True, slots=True)
class Heading:
    """What stands above a conversation in Markdown."""

    title: str
    started: datetime | None = None


def turn_texts(events: Iterable[Any], began_s: Mapping[int, float] | None = None) -> list[TurnText]:
    """The turns that were answered, from events of turns in their order; `began_s` as in `TurnText`."""
    turns: dict[int, TurnText] = {}
    answered: set[int] = set()
    for event in events:
        turn = turns.setdefault(event.turn_id, TurnText())
        if isinstance(event, TurnOpened):
            turn = replace(turn, question=event.text)
        elif isinstance(event, TurnCommitted):
            turn = replace(turn, question_s=event.seconds)
        elif isinstance(event, TurnTranscribed):
            turn = replace(turn, question=event.text)
        elif isinstance(event, ReplyFinished):
            turn = replace(turn, reply=event.text, reply_s=event.seconds)
            answered.add(event.turn_id)
        elif isinstance(event, ReplyCut):
            turn = replace(turn, reply=event.heard_text, reply_s=event.heard_s)
            answered.add(event.turn_id)
        turns[event.turn_id] = turn
    known = began_s or {}
    return [
        replace(turn, began_s=known.get(turn_id)) for turn_id, turn in turns.items() if turn_id in answered
    ]


def beginnings_of(events: Iterable[RecordedEvent]) -> dict[int, float]:
    """Where each turn begins on the line, in seconds."""
    return {known.event.turn_id: known.t for known in events if isinstance(known.event, TurnOpened)}


def title_of(turns: Iterable[TurnText]) -> str:
    """The title of a conversation that has none: its first words, "" where nothing is known as text."""
    return next((first_words_of(text) for turn in turns for text in (turn.question, turn.reply) if text), "")


def searchable_text(folder: Path) -> str:
    """All that was said in a conversation, as far as it is known as text, in small letters. RecordError."""
    turns = turn_texts(known.event for known in read_transcript(folder))
    return "\n".join(f"{turn.question}\n{turn.reply}" for turn in turns).casefold()


def as_text(turns: Iterable[TurnText], words: Words, *, heading: Heading | None = None) -> str:
    """One paragraph per question and reply; with a heading as Markdown, with the time of each question."""
    paragraphs = []
    if heading is not None and heading.title:
        paragraphs.append(f"# {heading.title}")
    if heading is not None and heading.started is not None:
        paragraphs.append(f"{heading.started:%Y-%m-%d %H:%M}")
    for turn in turns:
        is_timed = heading is not None and turn.began_s is not None
        user = f"{words.user}, {_clock(turn.began_s or 0.0)}" if is_timed else words.user
        for side in ((user, turn.question, turn.question_s), (words.assistant, turn.reply, turn.reply_s)):
            paragraphs.append(_paragraph(*side, words.spoke, is_markdown=heading is not None))
    return "\n\n".join(paragraphs) + "\n"


def write_text(path: Path, turns: Iterable[TurnText], words: Words, heading: Heading) -> None:
    """Write a file, Markdown with the heading and with times if its name ends in .md."""
    text = as_text(turns, words, heading=heading if path.suffix.lower() == ".md" else None)
    with ExportFile(path) as file:
        file.write(text.encode(errors="replace"))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _paragraph(name: str, text: str, seconds: float, spoke: str, *, is_markdown: bool) -> str:
    said = " ".join(text.split())
    label = f"{name}:" if said else f"{name} ({spoke.replace('%1', f'{seconds:.1f}')})"
    return f"{f'**{label}**' if is_markdown else label} {said}".rstrip()
