"""Recorded conversations on the disk: one private folder each, listed, read and deleted here.

conversation.json: format, program, bundle, settings, when it began; a summary for the list.
conversation.wav or .flac: stereo, left what the microphone captured, right what was played, on one time
line.
events.jsonl: commands, events and timings of the session, one JSON document a line, with `t` in seconds on
that line. history.json: the engine's history, from which the conversation can be continued.

Anybody may have changed the files, and the program may have been killed while it wrote them. What is read is
checked here: a document or a line that makes no sense is damaged and left out, and files are read up to a
stated size, so that no folder can keep the program from starting or fill its memory. Any thread.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from app.export import ExportFile, in_words
from app.process import take_lock
from app.session.recorded_values import value_of
from engine_runtime.errors import MossVoiceError
from engine_runtime.renamed import IN_TIMINGS, with_new_names

FORMAT = 1
ABOUT, EVENTS, HISTORY = "conversation.json", "events.jsonl", "history.json"
SOUND = "conversation.wav"
"""The sound while it grows, and for good where it is not packed."""
PACKED_SOUND = "conversation.flac"
"""The same sound after the conversation. Where both are there, the program was killed between them."""
ERASED = "erased.json"
"""Turns that the user deleted and that are being erased; see erased_turns.py. Readers leave them out."""
TITLE = "title.json"
"""The title that the user gave; of its own, because conversation.json belongs to the window that writes the
conversation."""
_FILES = (ABOUT, SOUND, PACKED_SOUND, EVENTS, HISTORY, ERASED, TITLE)
LONGEST_S = 30 * 86_400.0
"""Longest line of a recording; what claims to be later is damaged."""
LARGEST_ID = 1_000_000_000
"""Largest turn id: Qt counts in 32 bits."""
_LARGEST = {ABOUT: 1 << 20, HISTORY: 16 << 20, EVENTS: 128 << 20, ERASED: 1 << 20, TITLE: 1 << 16}
"""Bytes that are read. Parsed, a document takes up to 25 times as much memory; of events one line at a time
is held."""
_LONGEST_LINE = 1 << 20
_WORDS_SHOWN = 12
LONGEST_TITLE = 200
_STALE_S = 60.0
_LOCK_TRIES, _LOCK_S = 20, 0.02
_log = logging.getLogger(__name__)


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
    title: str
    """The one that the user gave, else the first words; "" for speech alone."""
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
    """The conversation that was held last, None if there is none, if it was ended or if it is going on."""
    # Not an older one: who began a new conversation and said nothing does not want it back.
    held = [known for known in list_conversations(root) if known.turns]
    latest = max(held, key=lambda known: _changed_ns(known.folder / ABOUT), default=None)
    if latest is None or latest.is_ended or is_being_written(latest.folder):
        return None
    return latest


def count_damaged(root: Path) -> int:
    """How many folders hold a conversation that cannot be read, and is not listed. The log names them."""
    return sum(_summary(folder, logging.WARNING) is None for folder in _folders(root))


def lock(folder: Path) -> int:
    """Keep other windows from writing this conversation, until the returned descriptor is closed or the
    process has ended in whatever way. RecordError if one writes it, OSError if there is no such folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(_LOCK_TRIES):
        if take_lock(descriptor):
            return descriptor
        time.sleep(_LOCK_S)
    os.close(descriptor)
    raise RecordError(
        "{folder} is being written by another window.", "Close that one and start again.", folder=folder
    )


def is_being_written(folder: Path) -> bool:
    """Whether a window holds this conversation now. Locks it for a moment, for which `lock` waits."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    is_free = take_lock(descriptor)
    os.close(descriptor)
    return not is_free


def sound_of(folder: Path) -> Path | None:
    """The file with the sound of a conversation, None if there is none."""
    return next((folder / name for name in (SOUND, PACKED_SOUND) if _is_file(folder / name)), None)


def with_unpacked_sound(root: Path) -> list[Path]:
    """The conversations whose sound can be packed: all but the one that would be continued, and those that
    are being written."""
    latest = latest_open(root)
    return [
        folder
        for folder in _folders(root)
        if _is_file(folder / SOUND)
        and (latest is None or folder != latest.folder)
        and not is_being_written(folder)
    ]


def size_bytes(folder: Path) -> int:
    """Size of the files of a conversation, or of all conversations in a folder."""
    total = 0
    for place in (folder, *_folders(folder)):
        for name in _FILES:
            with contextlib.suppress(OSError):
                total += (place / name).stat().st_size
    return total


def read_about(folder: Path) -> dict[str, Any]:
    """conversation.json; the values of a `ConversationSummary` in it are of their types. RecordError if it is
    missing, damaged, or of another format."""
    about = _document(folder / ABOUT)
    if about.get("format") != FORMAT:
        raise RecordError(
            "{folder} has format {format!s:.40}; this program reads format {wanted_format}.",
            "Use a matching version of the program.",
            folder=folder,
            format=about.get("format"),
            wanted_format=FORMAT,
        )
    try:
        about |= {
            "started": _started(about["started"]).isoformat(timespec="milliseconds"),
            "seconds": _number(float, about["seconds"], LONGEST_S),
            "turns": _number(int, about["turns"], LARGEST_ID),
            "first_words": value_of(str, about["first_words"]),
            "bundle": value_of(str, about.get("bundle", "")),
            "is_ended": value_of(bool, about["is_ended"]),
        }
    except (KeyError, ValueError) as error:
        raise RecordError(
            "{folder} is damaged.", "Choose another conversation.", folder=folder / ABOUT
        ) from error
    return about


def read_events(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of events.jsonl with a place `t`, in seconds; `turn_id` and `attributes` are of their types.
    Damaged lines, such as one that was cut off when the program was killed, are left out. RecordError if
    there is no such file, or if it is too large."""
    damaged = 0
    for line in event_lines(folder):
        if (entry := entry_of(line)) is not None:
            yield entry
        else:
            damaged += 1
    if erased := to_be_erased(folder):
        yield {"t": 0.0, "event": "TurnsRemoved", "turn_ids": sorted(erased)}
    if damaged:
        _log.warning("%s: %d damaged lines were left out", folder / EVENTS, damaged)


def count_damaged_events(folder: Path) -> int:
    """How many lines `read_events` leaves out."""
    return sum(entry_of(line) is None for line in event_lines(folder))


def event_lines(folder: Path) -> Iterator[bytes]:
    """The lines of events.jsonl as they are; one that is too long in parts. RecordError as `read_events`."""
    try:
        with open_regular(folder / EVENTS) as file:
            while line := file.readline(_LONGEST_LINE):
                yield line
    except OSError as error:
        raise RecordError(
            "{folder} cannot be read: {reason}.",
            "Choose another one.",
            folder=folder / EVENTS,
            reason=error.strerror,
        ) from error


def entry_of(line: bytes) -> dict[str, Any] | None:
    """A line of events.jsonl, None if it is damaged."""
    try:
        entry = _parsed(line)
        if not isinstance(entry, dict):
            return None
        entry["t"] = _number(float, max(value_of(float, entry.get("t", 0.0)), 0.0), LONGEST_S)
        if "turn_id" in entry and entry["turn_id"] is not None:  # None: an error outside of turns
            entry["turn_id"] = _number(int, entry["turn_id"], LARGEST_ID)
        if not isinstance(attributes := entry.get("attributes", {}), dict):
            return None
        if isinstance(name := entry.get("timing"), str):
            entry["attributes"] = with_new_names(name, attributes, IN_TIMINGS)
    except ValueError:
        return None
    return entry


def read_history(folder: Path) -> dict[str, Any]:
    """history.json, whose content the engine checks. RecordError if it is missing or damaged."""
    return without_turns(_document(folder / HISTORY), to_be_erased(folder))


def to_be_erased(folder: Path) -> set[int]:
    """Turns that are being erased. RecordError if that cannot be read."""
    if not _is_file(folder / ERASED):
        return set()
    try:
        return set(value_of(tuple[int, ...], _document(folder / ERASED).get("turn_ids")))
    except ValueError as error:
        raise RecordError(
            "{folder} is damaged.", "Choose another conversation.", folder=folder / ERASED
        ) from error


def without_turns(history: dict[str, Any], turn_ids: set[int]) -> dict[str, Any]:
    """A history without the exchanges of these turns."""
    exchanges, forgotten = history.get("exchanges"), history.get("num_forgotten")
    if not turn_ids or not isinstance(exchanges, list) or not isinstance(forgotten, int):
        return history
    is_kept = [not isinstance(known, dict) or _id_of(known) not in turn_ids for known in exchanges]
    return history | {
        "exchanges": [known for known, kept in zip(exchanges, is_kept, strict=True) if kept],
        "num_forgotten": sum(is_kept[:forgotten]),
    }


def _id_of(exchange: dict[str, Any]) -> int | None:
    turn_id = exchange.get("turn_id")
    return turn_id if isinstance(turn_id, int) else None


def first_words_of(text: str) -> str:
    """The beginning of a text, for the list of conversations."""
    return " ".join(text.split()[:_WORDS_SHOWN])


def open_regular(file: Path) -> BinaryIO:
    """Open a file of a recording. OSError if there is none, if it is too large, or a pipe or a device, which
    may not end."""
    descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no ordinary file")
        if found.st_size > _LARGEST.get(file.name, found.st_size):
            raise OSError(errno.EFBIG, "it is too large for a recorded conversation")
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


def rename_conversation(folder: Path, title: str) -> None:
    """Give a conversation a title, or with "" its first words again; also one that is being written.
    RecordError or ExportError if that cannot be done."""
    if not _is_file(folder / ABOUT):
        raise RecordError("{folder} is not a recorded conversation.", "Choose another folder.", folder=folder)
    title = " ".join(title.split())[:LONGEST_TITLE]
    if title:
        with ExportFile(folder / TITLE, is_private=True) as file:
            file.write(json.dumps({"title": title}, ensure_ascii=False).encode(errors="replace"))
        return
    try:
        (folder / TITLE).unlink(missing_ok=True)
    except OSError as error:
        raise in_words(folder / TITLE, error) from error


def delete_conversation(folder: Path) -> None:
    """Delete a conversation; files that are not of the program stay. RecordError if that cannot be done."""
    if not (folder / ABOUT).is_file():
        raise RecordError("{folder} is not a recorded conversation.", "Choose another folder.", folder=folder)
    _delete(folder)


def _delete(folder: Path) -> None:
    try:
        for file in _unfinished(folder):
            file.unlink(missing_ok=True)
        for name in reversed(_FILES):  # conversation.json last: what is left can still be deleted
            (folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # files of someone else
            folder.rmdir()
    except OSError as error:
        raise RecordError(
            "{folder} cannot be deleted: {reason}.",
            "Check its permissions.",
            folder=folder,
            reason=error.strerror,
        ) from error


def delete_all(root: Path) -> None:
    """Delete all conversations in a folder, and what is left of others. RecordError as `delete_conversation`,
    after the others."""
    failure: RecordError | None = None
    for folder in (*_folders(root), *_remains(root)):
        try:
            _delete(folder)
        except RecordError as error:
            failure = error
    if failure is not None:
        raise failure


def clear_remains(root: Path) -> None:
    """Remove what a program that was killed has left: files that it had not put in place yet, and folders
    without a conversation. Files of this minute may be of a program that runs."""
    with contextlib.suppress(RecordError):
        for folder in _remains(root):
            if _age_s(folder) > _STALE_S:
                _delete(folder)
    for folder in _folders(root):
        for file in _unfinished(folder):
            if _age_s(file) > _STALE_S:
                with contextlib.suppress(OSError):
                    file.unlink()


def _remains(root: Path) -> list[Path]:
    """Folders of conversations that had just begun when the program was killed, before conversation.json was
    in place."""
    found = []
    with contextlib.suppress(OSError):
        for folder in sorted(root.iterdir()):
            if folder.is_symlink() or not folder.is_dir() or _is_file(folder / ABOUT):
                continue
            with contextlib.suppress(OSError):
                unfinished = _unfinished(folder)
                others = {file.name for file in folder.iterdir() if file not in unfinished}
                if others <= {EVENTS} and (unfinished or others):
                    found.append(folder)
    return found


def _unfinished(folder: Path) -> list[Path]:
    """Files of this program that were not put in place; see export.py."""
    return [file for name in _FILES for file in sorted(folder.glob(f".{name}.*.part"))]


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _folders(root: Path) -> list[Path]:
    try:
        return [folder for folder in sorted(root.iterdir()) if _is_file(folder / ABOUT)]
    except OSError:
        return []


def _is_file(file: Path) -> bool:
    try:
        return file.is_file()
    except OSError:  # no permission
        return False


def _changed_ns(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:  # deleted meanwhile
        return 0


def _summary(folder: Path, level: int = logging.DEBUG) -> ConversationSummary | None:
    try:
        about = read_about(folder)
    except RecordError as error:
        _log.log(level, "not listed: %s", error)
        return None
    return ConversationSummary(
        folder,
        _started(about["started"]),
        about["seconds"],
        about["turns"],
        about["first_words"],
        _title(folder) or about["first_words"],
        about["bundle"],
        size_bytes(folder),
        sound_of(folder) is not None,
        about["is_ended"],
    )


def _title(folder: Path) -> str:
    """The title that the user gave, "" for none; one that makes no sense is none."""
    if not _is_file(folder / TITLE):
        return ""
    with contextlib.suppress(RecordError, ValueError):
        return " ".join(value_of(str, _document(folder / TITLE).get("title")).split())[:LONGEST_TITLE]
    return ""


def _started(text: Any) -> datetime:
    """A time of this century or so, in the zone of this computer; one without a zone is taken for local."""
    started = datetime.fromisoformat(value_of(str, text))
    if not 1970 <= started.year < 9_000:  # beyond, times cannot be converted between zones
        raise ValueError(f"{started} is no date of a conversation")
    return started.astimezone()


def _number(kind: type, value: Any, most: float) -> Any:
    number = value_of(kind, value)
    if not 0 <= number <= most:
        raise ValueError(f"{number} is not from 0 to {most}")
    return number


def _document(file: Path) -> dict[str, Any]:
    try:
        with open_regular(file) as opened:
            document = _parsed(opened.read(_LARGEST[file.name]))
    except OSError as error:
        raise RecordError(
            "{parent} is not a recorded conversation ({file}: {reason}).",
            "Choose another folder.",
            parent=file.parent,
            file=file.name,
            reason=error.strerror,
        ) from error
    except ValueError as error:
        raise RecordError("{file} is damaged.", "Choose another conversation.", file=file) from error
    if not isinstance(document, dict):
        raise RecordError("{file} is damaged.", "Choose another conversation.", file=file)
    return document


def _parsed(content: bytes) -> Any:
    """A JSON document with finite numbers. ValueError if it is none."""
    try:
        return json.loads(content, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("it is too deep") from error


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)
