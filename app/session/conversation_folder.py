"""Recorded conversations on the disk: one private folder each, listed, read and deleted here.

conversation.json: format, program, bundle, settings, when it began; a summary for the list.
conversation.wav: stereo, left what the microphone captured, right what was played, on one time line.
events.jsonl: commands, events and timings of the session, one JSON document a line, with `t` in seconds on
that line. history.json: the engine's history, from which the conversation can be continued. Any thread.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from engine_runtime.errors import MossVoiceError

FORMAT = 1
ABOUT, SOUND, EVENTS, HISTORY = "conversation.json", "conversation.wav", "events.jsonl", "history.json"
_FILES = (ABOUT, SOUND, EVENTS, HISTORY)
_LARGEST_DOCUMENT = 64 << 20


class RecordError(MossVoiceError):
    """A recorded conversation cannot be read or deleted."""


@dataclass(frozen=True, slots=True)
class ConversationSummary:
    """A line of the list of conversations."""

    folder: Path
    started: datetime
    seconds: float
    turns: int
    first_words: str
    bundle: str
    size_bytes: int
    has_sound: bool
    is_ended: bool
    """Whether another conversation was begun; until then this one can be continued."""


def list_conversations(root: Path) -> list[ConversationSummary]:
    """The conversations in a folder, the latest first; other folders are left out."""
    found = [summary for folder in _folders(root) if (summary := _summary(folder)) is not None]
    return sorted(found, key=lambda summary: summary.started, reverse=True)


def latest_open(root: Path) -> ConversationSummary | None:
    """The conversation that was held last and not ended, None if there is none."""
    found = [known for known in list_conversations(root) if known.turns and not known.is_ended]
    return max(found, key=lambda known: (known.folder / ABOUT).stat().st_mtime_ns, default=None)


def size_bytes(folder: Path) -> int:
    """Size of the files of a conversation, or of all conversations in a folder."""
    total = 0
    for place in (folder, *_folders(folder)):
        for name in _FILES:
            with contextlib.suppress(OSError):
                total += (place / name).stat().st_size
    return total


def read_about(folder: Path) -> dict[str, Any]:
    """conversation.json. RecordError if it is missing, damaged, or of another format."""
    about = _document(folder / ABOUT)
    if about.get("format") != FORMAT:
        raise RecordError(
            f"{folder} has format {about.get('format')!r}; this program reads format {FORMAT}. "
            "Use a matching version of the program."
        )
    return about


def read_events(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of events.jsonl; a line that was cut off when the program was killed is left out."""
    try:
        with (folder / EVENTS).open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                with contextlib.suppress(ValueError):
                    entry = json.loads(line)
                    if isinstance(entry, dict):
                        yield entry
    except OSError as error:
        raise RecordError(
            f"{folder / EVENTS} cannot be read: {error.strerror}. Choose another one."
        ) from error


def read_history(folder: Path) -> dict[str, Any]:
    """history.json. RecordError if it is missing or damaged."""
    return _document(folder / HISTORY)


def delete_conversation(folder: Path) -> None:
    """Delete a conversation; files that are not of the program stay. RecordError if that cannot be done."""
    if not (folder / ABOUT).is_file():
        raise RecordError(f"{folder} is not a recorded conversation. Choose another folder.")
    try:
        for name in reversed(_FILES):  # conversation.json last: what is left can still be deleted
            (folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # files of someone else
            folder.rmdir()
    except OSError as error:
        raise RecordError(f"{folder} cannot be deleted: {error.strerror}. Check its permissions.") from error


def delete_all(root: Path) -> None:
    """Delete all conversations in a folder. RecordError as `delete_conversation`, after the others."""
    failure: RecordError | None = None
    for folder in _folders(root):
        try:
            delete_conversation(folder)
        except RecordError as error:
            failure = error
    if failure is not None:
        raise failure


def _folders(root: Path) -> list[Path]:
    try:
        return [folder for folder in sorted(root.iterdir()) if (folder / ABOUT).is_file()]
    except OSError:
        return []


def _summary(folder: Path) -> ConversationSummary | None:
    try:
        about = read_about(folder)
        return ConversationSummary(
            folder,
            datetime.fromisoformat(about["started"]),
            float(about["seconds"]),
            int(about["turns"]),
            str(about["first_words"]),
            str(about.get("bundle", "")),
            size_bytes(folder),
            (folder / SOUND).is_file(),
            bool(about["is_ended"]),
        )
    except (RecordError, KeyError, TypeError, ValueError):
        return None


def _document(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > _LARGEST_DOCUMENT:
            raise RecordError(f"{file} is too large for a recorded conversation. Choose another folder.")
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(
            f"{file.parent} is not a recorded conversation ({file.name}: {error.strerror}). "
            "Choose another folder."
        ) from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{file} is damaged. Choose another conversation.") from error
    if not isinstance(document, dict):
        raise RecordError(f"{file} is damaged. Choose another conversation.")
    return document
