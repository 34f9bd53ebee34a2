"""Kept conversations of one turn, and the same with anything in them, for fuzz tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from app.audio.wav import wav_header
from tests.tools.fuzzing import mutated_bytes

ABOUT = {
    "format": 1, "started": "2026-11-20T10:00:00.000+00:00", "seconds": 3.0, "turns": 1, "first_words": "one",
    "is_ended": False, "bundle": "nano", "settings": {"seed": 5, "turn_taking": {"bystander_db": None}},
}  # fmt: skip
LINES: list[dict[str, Any]] = [
    {"t": 0.5, "command": "AskText", "text": "one"},
    {"t": 1.0, "event": "TurnOpened", "turn_id": 1, "source": "text", "text": "one"},
    {"t": 1.0, "event": "TurnCommitted", "turn_id": 1, "seconds": 0.0, "start_s": 0.0},
    {"t": 1.2, "timing": "decision", "turn_id": 1, "duration_ms": 0.0, "attributes": {"kind": "commit"}},
    {"t": 1.5, "event": "ReplyTextDelta", "turn_id": 1, "text": "tw", "is_subtitle": True},
    {"t": 2.0, "event": "ReplyFinished", "turn_id": 1, "modality": "speech", "seconds": 1.0, "text": "two",
     "user_codes": 0, "codes": 12, "finish_reason": "stop"},
    {"t": 2.5, "event": "ReplyCut", "turn_id": 1, "reason": "barge_in", "modality": "speech",
     "heard_text": "t", "unheard_text": "wo", "heard_s": 0.4, "made_s": 1.0, "user_codes": 0,
     "heard_codes": 5},
    {"t": 2.6, "event": "TurnCancelled", "turn_id": 1, "reason": "barge_in"},
    {"t": 3.0, "event": "TurnsRemoved", "turn_ids": [7]},
]  # fmt: skip
HISTORY = {
    "format": 1, "bundle": "nano", "vocabulary": "x", "seed": 3, "num_commits": 1, "num_forgotten": 0,
    "modality": "speech", "exchanges": [
        {"turn_id": 1, "user": [[1, 2]], "reply": [[3, 4]], "text": "two", "speech_maximum": None},
    ],
}  # fmt: skip

HOSTILE: st.SearchStrategy[Any] = st.sampled_from(
    [
        None, True, -1, 0, 1.5, 2**31, 2**63, 10**300, "", "x", "1", "\ud800", "\0", "9" * 5_000,
        "x" * 50_000, [], [[]], [1, [2]], {}, {"kind": []}, "2026-11-20T10:00:00",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00", float("nan"), float("inf"), -float("inf"), "speech", "voice",
    ]
)  # fmt: skip
RAW = st.sampled_from(
    [
        b"1e400", b"-1e400", b"NaN", b"9" * 5_000, b"9" * 400, b"[" * 50_000, b'{"a":' * 50_000, b"\xff\xfe",
        b"\0", b'"\\ud800"', b"{}", b"null", b"", b"\n", b"[" * 900 + b"]" * 900,
    ]
)  # fmt: skip


def changed(document: Any) -> st.SearchStrategy[Any]:
    """The document with some of its values replaced, or removed."""
    if isinstance(document, dict):
        parts = {name: changed(value) | HOSTILE for name, value in document.items()}
        whole = st.fixed_dictionaries({}, optional=parts) | st.fixed_dictionaries(parts)
        return st.just(document) | whole
    if isinstance(document, list) and document:
        return st.just(document) | st.lists(st.one_of(*map(changed, document)), max_size=6)
    return st.just(document)


def coded(document: Any) -> bytes:
    return json.dumps(document).encode()


ABOUTS = st.one_of(changed(ABOUT).map(coded), mutated_bytes(coded(ABOUT)), RAW, st.binary(max_size=60))
LINE = st.one_of(
    st.sampled_from(LINES).flatmap(changed).map(coded),
    st.sampled_from(LINES).map(coded).flatmap(mutated_bytes),
    RAW,
    st.binary(max_size=60),
)
EVENTS = st.lists(LINE, max_size=12).map(b"\n".join)
HISTORIES = st.one_of(changed(HISTORY).map(coded), mutated_bytes(coded(HISTORY)), RAW)
SOUNDS = st.one_of(mutated_bytes(wav_header(48_000, 2, 9) + bytes(36)), st.binary(max_size=60))
CONTENTS = st.tuples(*(files | st.none() for files in (ABOUTS, EVENTS, HISTORIES, SOUNDS)))
"""What is in each of `FILES`, None for no file."""
FILES = ("conversation.json", "events.jsonl", "history.json", "conversation.wav")


def write(folder: Path, contents: tuple[bytes | None, ...]) -> None:
    """Make the files of a conversation."""
    folder.mkdir(exist_ok=True)
    for name, content in zip(FILES, contents, strict=True):
        if content is not None:
            (folder / name).write_bytes(content)
