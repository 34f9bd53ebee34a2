"""Kept conversations of any content: what cannot be read is left out, or a RecordError."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from app.session import conversation_folder
from app.session.conversation_folder import (
    RecordError,
    count_damaged,
    count_damaged_events,
    event_lines,
    latest_open,
    list_conversations,
    read_about,
    read_events,
    size_bytes,
)
from app.session.recorded_values import settings_of
from app.session.replay import compare
from app.session.session_settings import SessionSettings
from app.session.transcript import (
    Heading,
    Words,
    beginnings_of,
    how_to_continue,
    read_transcript,
    spans_of,
    title_of,
    turn_texts,
    write_text,
)
from engine_runtime.conversation.snapshot import ConversationSnapshot
from engine_runtime.errors import MossVoiceError
from tests.tools.kept_conversations import ABOUT, CONTENTS, HISTORY, LINES, coded, write


@pytest.mark.slow
@settings(
    max_examples=400, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)
@given(CONTENTS)
def test_any_content_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, contents: tuple[bytes | None, ...]
) -> None:
    root = tmp_path_factory.mktemp("kept")
    folder = root / "one"
    folder.mkdir()
    write(folder, contents)
    try:
        read_all(root, folder)
    finally:
        shutil.rmtree(root)


def read_all(root: Path, folder: Path) -> None:
    """Everything that window and command line do with a kept conversation."""
    found = list_conversations(root)
    assert len(found) + count_damaged(root) <= 1
    latest_open(root)
    size_bytes(root)
    for known in found:
        assert known.started.tzinfo is not None
        known.started.strftime("%Y-%m-%d %H:%M")
        known.first_words.encode()
        settings_of(read_about(folder).get("settings"), SessionSettings())
    try:
        entries, damaged = list(read_events(folder)), count_damaged_events(folder)
        assert len(entries) + damaged == sum(1 for _ in event_lines(folder))
        events = read_transcript(folder)
        assert all(0 <= start <= end for start, end in spans_of(events).values())
        turns = turn_texts((known.event for known in events), beginnings_of(events))
        heading = Heading(title_of(turns), found[0].started if found else None)
        write_text(root / "text.md", turns, Words("You", "MOSS", "spoke %1 s"), heading)
        command = how_to_continue(folder)
        assert 0 <= command.seconds <= conversation_folder.LONGEST_S
        assert 0 <= command.last_turn_id <= conversation_folder.LARGEST_ID
        ConversationSnapshot.of(command.history)
        compare(folder, folder)
    except MossVoiceError:
        pass


@pytest.mark.parametrize(
    ("name", "read"),
    [("events.jsonl", read_transcript), ("history.json", how_to_continue), ("conversation.json", read_about)],
)
@pytest.mark.parametrize("kind", ["large", "pipe", "folder", "endless"])
def test_what_is_no_ordinary_file_is_refused(tmp_path: Path, name: str, read: Any, kind: str) -> None:
    """A pipe waits for ever, /dev/zero fills the memory, as does a file of gigabytes."""
    write(tmp_path, (coded(ABOUT), b"", coded(HISTORY), b""))
    file = tmp_path / name
    file.unlink()
    if kind == "large":
        with file.open("wb") as large:
            large.truncate(1 << 33)
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to("/dev/zero")
    with pytest.raises(RecordError):
        read(tmp_path)


def test_a_line_without_an_end_is_read_in_parts(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b"x" * (3 << 20) + b"\n" + coded(LINES[1]))
    assert [entry["t"] for entry in read_events(tmp_path)] == [1.0]


def test_the_number_of_events_of_a_turn_is_limited(tmp_path: Path) -> None:
    delta = {"t": 1.5, "event": "ReplyTextDelta", "turn_id": 1, "text": "x" * 100, "is_subtitle": True}
    lines = [LINES[1], *[delta] * 2_000, *[LINES[2]] * 2_000]
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(map(coded, lines)))
    events = read_transcript(tmp_path)
    assert len(events) == 50
    assert max(len(getattr(known.event, "text", "")) for known in events) == 20_000
