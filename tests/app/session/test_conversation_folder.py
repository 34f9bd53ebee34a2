"""Folders of recorded conversations: listed, read, deleted; damaged ones are left out or explained."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from app.session.conversation_folder import (
    LONGEST_TITLE,
    RecordError,
    clear_remains,
    delete_all,
    delete_conversation,
    is_being_written,
    latest_open,
    list_conversations,
    lock,
    read_about,
    read_events,
    rename_conversation,
    size_bytes,
)


def make(root: Path, name: str, **given: Any) -> Path:
    about = {
        "format": 1, "started": f"2026-11-2{len(name)}T10:00:00+00:00", "seconds": 3.5, "turns": 2,
        "first_words": name, "is_ended": True, "bundle": "nano", **given,
    }  # fmt: skip
    (root / name).mkdir(parents=True)
    (root / name / "conversation.json").write_text(json.dumps(about))
    (root / name / "events.jsonl").write_text('{"t": 1.0, "event": "A"}\n{"t": 2.0, "event": "B"}\n{"t": 3.')
    (root / name / "conversation.wav").write_bytes(bytes(1_000))
    return root / name


def test_the_list_is_by_date_and_leaves_out_what_is_none(tmp_path: Path) -> None:
    for name in ("a", "bb", "ccc"):
        make(tmp_path, name)
    make(tmp_path, "newer", format=2)
    make(tmp_path, "wrong", started="yesterday")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "conversation.txt").write_text("no")
    found = list_conversations(tmp_path)
    assert [summary.first_words for summary in found] == ["ccc", "bb", "a"]
    assert all(summary.has_sound and summary.seconds == 3.5 for summary in found)
    assert found[0].size_bytes == size_bytes(tmp_path / "ccc") > 1_000
    assert size_bytes(tmp_path) == sum(
        size_bytes(tmp_path / name) for name in ("a", "bb", "ccc", "newer", "wrong")
    )
    assert list_conversations(tmp_path / "none") == []


def test_the_conversation_that_was_held_last_is_continued_unless_it_was_ended(tmp_path: Path) -> None:
    assert latest_open(tmp_path) is None
    for time_s, (name, is_ended) in enumerate((("bb", False), ("a", False), ("ccc", True)), 1_000):
        folder = make(tmp_path, name, is_ended=is_ended)
        os.utime(folder / "conversation.json", (time_s, time_s))
        latest = latest_open(tmp_path)
        assert (latest.first_words if latest is not None else None) == (None if is_ended else name)


def test_events_without_the_line_that_was_cut_off(tmp_path: Path) -> None:
    assert [entry["event"] for entry in read_events(make(tmp_path, "a"))] == ["A", "B"]
    with pytest.raises(RecordError, match="cannot be read"):
        list(read_events(tmp_path / "none"))


def test_what_cannot_be_read_is_explained(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="not a recorded conversation"):
        read_about(tmp_path)
    with pytest.raises(RecordError, match="format 2"):
        read_about(make(tmp_path, "newer", format=2))
    for content in ("{", "[1]", "[" * 100_000):
        (tmp_path / "newer" / "conversation.json").write_text(content)
        with pytest.raises(RecordError, match="damaged"):
            read_about(tmp_path / "newer")


def test_only_files_of_the_program_are_deleted(tmp_path: Path) -> None:
    first, second, other = make(tmp_path, "a"), make(tmp_path, "bb"), tmp_path / "holiday"
    (second / "notes.txt").write_text("mine")
    other.mkdir()
    (other / "conversation.wav").write_bytes(b"mine")
    with pytest.raises(RecordError, match="not a recorded conversation"):
        delete_conversation(other)
    delete_all(tmp_path)
    assert not first.exists()
    assert [file.name for file in second.iterdir()] == ["notes.txt"]
    assert (other / "conversation.wav").exists()
    assert list_conversations(tmp_path) == []


def test_one_that_cannot_be_deleted_does_not_keep_the_others(tmp_path: Path) -> None:
    for name in ("a", "bb"):
        make(tmp_path, name)
    (tmp_path / "a" / "conversation.wav").unlink()
    (tmp_path / "a" / "conversation.wav").mkdir()
    with pytest.raises(RecordError, match="cannot be deleted"):
        delete_all(tmp_path)
    assert [summary.first_words for summary in list_conversations(tmp_path)] == ["a"]


def make_part(folder: Path, name: str, age_s: float = 0.0) -> Path:
    part = folder / f".{name}.x1y2z3.part"
    part.write_text("what was said")
    os.utime(part, (time.time() - age_s,) * 2)
    return part


def test_files_that_were_not_put_in_place_are_deleted_too(tmp_path: Path) -> None:
    folder, killed = make(tmp_path, "a"), make(tmp_path, "bb")
    for name in ("conversation.json", "history.json", "events.jsonl", "erased.json"):
        make_part(folder, name)
    for name in ("conversation.json", "conversation.wav"):  # killed before the first of them was in place
        (killed / name).unlink()
    make_part(killed, "conversation.json")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "history.json").write_text("mine")
    (mine / ".diary.abc.part").write_text("mine")
    (tmp_path / "empty").mkdir()
    delete_all(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["empty", "mine"]
    assert len(list(mine.iterdir())) == 2


def test_stale_files_are_cleared_and_those_in_use_stay(tmp_path: Path) -> None:
    folder, killed, begun = (make(tmp_path, name) for name in ("a", "bb", "ccc"))
    stale, fresh = make_part(folder, "history.json", 100.0), make_part(folder, "conversation.json")
    for broken in (killed, begun):
        (broken / "conversation.json").unlink()
        (broken / "conversation.wav").unlink()
    os.utime(killed, (time.time() - 100.0,) * 2)
    clear_remains(tmp_path)
    assert not stale.exists()
    assert not killed.exists()
    assert fresh.exists()
    assert begun.exists()
    assert [summary.first_words for summary in list_conversations(tmp_path)] == ["a"]
    clear_remains(tmp_path / "none")


def test_a_folder_that_cannot_be_opened_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "bb"):
        make(tmp_path, name)
    stat = Path.stat

    def deny(path: Path, **given: Any) -> os.stat_result:
        if path.parent.name == "bb":
            raise PermissionError(13, "Permission denied")
        return stat(path, **given)

    monkeypatch.setattr(Path, "stat", deny)
    assert [summary.first_words for summary in list_conversations(tmp_path)] == ["a"]


def test_a_conversation_that_is_going_on_elsewhere_is_not_continued(tmp_path: Path) -> None:
    folder = make(tmp_path, "a", is_ended=False)
    assert not is_being_written(folder)
    held = lock(folder)
    assert is_being_written(folder)
    assert latest_open(tmp_path) is None
    with pytest.raises(RecordError, match="another window"):
        lock(folder)
    os.close(held)
    found = latest_open(tmp_path)
    assert found is not None
    assert found.folder == folder


def test_a_title_of_its_own_is_read_as_far_as_it_makes_sense(tmp_path: Path) -> None:
    folder = make(tmp_path, "a")
    (before,) = list_conversations(tmp_path)
    assert before.title == before.first_words
    rename_conversation(folder, "  Two\nlines ")
    assert list_conversations(tmp_path)[0].title == "Two lines"
    assert (folder / "title.json").stat().st_mode & 0o777 == 0o600
    for content in (b"", b"{", b"[]", b'{"title": 5}', b'{"title": " "}', bytes(1 << 17)):
        (folder / "title.json").write_bytes(content)
        assert list_conversations(tmp_path)[0].title == before.first_words
    rename_conversation(folder, "x" * 1_000)
    assert len(list_conversations(tmp_path)[0].title) == LONGEST_TITLE
    rename_conversation(folder, "")
    assert not (folder / "title.json").exists()
    with pytest.raises(RecordError):
        rename_conversation(tmp_path, "no conversation")
    rename_conversation(folder, "again")
    delete_conversation(folder)
    assert not folder.exists()
