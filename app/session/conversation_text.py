"""A recorded conversation as text, for reading: Markdown, or plain text.

In: its events, and the names of both sides. Out: a file. Raises ExportError. Any thread.
"""

from __future__ import annotations

from pathlib import Path

from app.export import ExportFile
from app.session.events import ReplyCut, ReplyFinished, TurnOpened
from app.session.recorded_events import RecordedEvent


def write_text(path: Path, events: list[RecordedEvent], user: str, assistant: str, speech: str) -> None:
    """One paragraph per question and reply; Markdown if the name ends in .md. `speech` replaces
    speech without a text."""
    is_markdown = path.suffix.lower() == ".md"
    paragraphs = []
    for name, said in _sides(events, user, assistant):
        label = f"**{name}:**" if is_markdown else f"{name}:"
        paragraphs.append(f"{label} {' '.join(said.split()) or speech}")
    with ExportFile(path) as file:
        file.write(("\n\n".join(paragraphs) + "\n").encode())


def _sides(events: list[RecordedEvent], user: str, assistant: str) -> list[tuple[str, str]]:
    """(name, text) of each question and reply in order; of a cut reply what was heard."""
    questions: dict[int, str] = {}
    replies: dict[int, str] = {}
    for recorded in events:
        event = recorded.event
        if isinstance(event, TurnOpened):
            questions[event.turn_id] = event.text
        elif isinstance(event, ReplyFinished):
            replies[event.turn_id] = event.text
        elif isinstance(event, ReplyCut):
            replies[event.turn_id] = event.heard_text
    said = []
    for turn_id, question in questions.items():
        if turn_id in replies:
            said += [(user, question), (assistant, replies[turn_id])]
    return said
