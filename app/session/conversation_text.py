"""A conversation as text, for reading: Markdown, or plain text.

In: the events of its turns, recorded or on show, and the words for both sides. Out: a text, or a
file. Raises ExportError. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.export import ExportFile
from app.session.events import ReplyCut, ReplyFinished, TurnCommitted, TurnOpened


@dataclass(frozen=True, slots=True)
class TurnText:
    """A question and its reply. Speech without a text has a length in seconds instead."""

    question: str = ""
    question_s: float = 0.0
    reply: str = ""
    reply_s: float = 0.0
    """Length of the reply; of one that was cut, the part that was heard."""


@dataclass(frozen=True, slots=True)
class Words:
    """The words for both sides in the language of the reader; `spoke` has %1 for a length in seconds."""

    user: str
    assistant: str
    spoke: str


def turn_texts(events: Iterable[Any]) -> list[TurnText]:
    """The turns that were answered, from events of turns in their order."""
    turns: dict[int, TurnText] = {}
    answered: set[int] = set()
    for event in events:
        turn = turns.setdefault(event.turn_id, TurnText())
        if isinstance(event, TurnOpened):
            turn = replace(turn, question=event.text)
        elif isinstance(event, TurnCommitted):
            turn = replace(turn, question_s=event.seconds)
        elif isinstance(event, ReplyFinished):
            turn = replace(turn, reply=event.text, reply_s=event.seconds)
            answered.add(event.turn_id)
        elif isinstance(event, ReplyCut):
            turn = replace(turn, reply=event.heard_text, reply_s=event.heard_s)
            answered.add(event.turn_id)
        turns[event.turn_id] = turn
    return [turn for turn_id, turn in turns.items() if turn_id in answered]


def as_text(turns: Iterable[TurnText], words: Words, *, is_markdown: bool) -> str:
    """One paragraph per question and reply."""
    sides = [
        side
        for turn in turns
        for side in (
            (words.user, turn.question, turn.question_s),
            (words.assistant, turn.reply, turn.reply_s),
        )
    ]
    return "\n\n".join(_paragraph(*side, words.spoke, is_markdown=is_markdown) for side in sides) + "\n"


def write_text(path: Path, turns: Iterable[TurnText], words: Words) -> None:
    """Write a file, Markdown if its name ends in .md."""
    text = as_text(turns, words, is_markdown=path.suffix.lower() == ".md")
    with ExportFile(path) as file:
        file.write(text.encode(errors="replace"))


def _paragraph(name: str, text: str, seconds: float, spoke: str, *, is_markdown: bool) -> str:
    said = " ".join(text.split())
    label = f"{name}:" if said else f"{name} ({spoke.replace('%1', f'{seconds:.1f}')})"
    return f"{f'**{label}**' if is_markdown else label} {said}".rstrip()
