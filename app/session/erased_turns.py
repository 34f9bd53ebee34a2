"""Erases turns from a kept conversation: what was said, captured, played and generated, in all of its files.

In: the folder, and the ids of turns. Out: the files without them, and the parts of the time line that are
silent now. First a note of what is to be erased is put into the folder (`conversation_folder.ERASED`), and
readers leave those turns out from then on; it is removed last. Whatever is killed in between is finished by
`finish`, whose steps can be repeated: a conversation is the old one or the new one, and never lost. Damaged
lines are dropped on the way, because they may be what was to be erased. Any thread, while nobody else writes
the conversation. Raises RecordError and ExportError.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.audio.flac import silence_flac
from app.audio.growing_wav import Stretch, silence
from app.export import ExportFile, in_words
from app.session.conversation_folder import (
    ABOUT,
    ERASED,
    EVENTS,
    HISTORY,
    PACKED_SOUND,
    SOUND,
    RecordError,
    entry_of,
    event_lines,
    first_words_of,
    is_being_written,
    read_about,
    read_history,
    sound_of,
    to_be_erased,
    without_turns,
)
from app.session.events import (
    PlaybackFinished,
    PlaybackStarted,
    ReplyCut,
    ReplyFinished,
    TurnCancelled,
    TurnCommitted,
    TurnOpened,
    TurnsRemoved,
    TurnTranscribed,
)
from app.session.recorded_values import revived
from engine_runtime.errors import MossVoiceError

_BEFORE_S = 1.5
"""Longest time from the first word of a turn to its TurnOpened: the pre-roll, and an interruption that is not
recognized at once."""
_AFTER_S = 0.5
"""Longest time from a sample that is handed to the loudspeaker to its echo in the microphone."""
_log = logging.getLogger(__name__)
_EARLIER_RECORD = 0
"""Turn id of a part that is played from a recording: it may be a turn that is erased."""


@dataclass(slots=True)
class _Turn:
    """Where a turn lies on the time line, in seconds."""

    opened: float | None = None
    is_committed: bool = False
    committed: float = 0.0
    ended: float = 0.0
    plays: list[list[float]] = field(default_factory=list)
    """[start, end] of each time that its reply was played."""
    asked: list[int] = field(default_factory=list)
    """Lines of the commands with its typed question."""


def erase(folder: Path, turn_ids: Iterable[int]) -> list[Stretch]:
    """Erase turns; returns what is silent now, in seconds."""
    _replace(folder / ERASED, {"turn_ids": sorted(to_be_erased(folder) | set(turn_ids))})
    return finish(folder)


def finish(folder: Path) -> list[Stretch]:
    """Erase what `erase` could not complete, if there is anything."""
    turn_ids = to_be_erased(folder)
    if not turn_ids:
        return []
    turns, removed = _scan(folder)
    turn_ids |= removed
    stretches = _stretches(turns, turn_ids)
    if sound_of(folder) == folder / SOUND:
        silence(folder / SOUND, stretches)
        _remove(folder / PACKED_SOUND)
    else:
        silence_flac(folder / PACKED_SOUND, stretches)
    try:
        _replace(folder / HISTORY, without_turns(read_history(folder), turn_ids))
    except RecordError:  # there is none, or nothing can be continued from it
        _remove(folder / HISTORY)
    kept = [turn for turn_id, turn in turns.items() if turn_id not in turn_ids and turn.is_committed]
    about = read_about(folder) | {"turns": len(kept), "first_words": _first_words(folder, turn_ids)}
    _replace(folder / ABOUT, about)
    _drop_lines(folder, turns, turn_ids)
    _remove(folder / ERASED)
    return stretches


def finish_all(root: Path) -> None:
    """Like `finish`, for all conversations of a folder that no window writes; the log says what is left."""
    for note in sorted(root.glob(f"*/{ERASED}")):
        try:
            if not is_being_written(note.parent):
                finish(note.parent)
        except MossVoiceError as error:
            _log.warning("turns that were deleted are not erased yet: %s", error)


def _scan(folder: Path) -> tuple[dict[int, _Turn], set[int]]:
    """Where the turns are, and those that had been removed from the conversation before."""
    turns: dict[int, _Turn] = defaultdict(_Turn)
    removed: set[int] = set()
    asked: list[tuple[int, str]] = []
    open_play: list[float] | None = None
    for number, line in enumerate(event_lines(folder)):
        if (entry := entry_of(line)) is None:
            continue
        kind, t = entry.get("event"), entry["t"]
        if kind == TurnsRemoved.__name__ and (gone := revived(TurnsRemoved, entry)) is not None:
            removed.update(gone.turn_ids)
        if entry.get("command") == "AskText":
            asked.append((number, str(entry.get("text")).strip()))
        if open_play is not None:
            open_play[1] = t
        if not isinstance(turn_id := entry.get("turn_id"), int) or kind is None:
            continue
        turn = turns[turn_id]
        if kind == TurnOpened.__name__:
            turn.opened = turn.committed = turn.ended = t
            turn.asked = [at for at, text in asked if text == str(entry.get("text")).strip()]
            asked = []
        elif kind == TurnCommitted.__name__:
            turn.is_committed, turn.committed, turn.ended = True, t, t
        elif kind in (ReplyFinished.__name__, ReplyCut.__name__):
            turn.ended = max(turn.ended, t)
        elif kind == PlaybackStarted.__name__:
            open_play = [t, t]
            turn.plays.append(open_play)
        elif kind in (PlaybackFinished.__name__, TurnCancelled.__name__) and turn.plays:
            open_play = None if turn.plays[-1] is open_play else open_play
    return turns, removed


def _stretches(turns: dict[int, _Turn], turn_ids: set[int]) -> list[Stretch]:
    """The parts to be silenced: the question, its reply each time it was played, and their echo. What the
    user said in the turns around them stays."""
    line = sorted(
        (turn.opened, turn_id) for turn_id, turn in turns.items() if turn.opened is not None and turn_id
    )
    found: list[Stretch] = []
    for place, (opened, turn_id) in enumerate(line):
        if turn_id not in turn_ids:
            continue
        turn, before = turns[turn_id], turns[line[place - 1][1]] if place else _Turn()
        heard = turn.plays[0][1] if turn.plays else turn.ended
        before_end = before.plays[0][1] if before.plays else before.ended
        start, end = max(opened - _BEFORE_S, before.committed, 0.0), max(heard, turn.ended)
        found.append(Stretch(0, start, max(turn.committed, _until(line, opened, end, -_BEFORE_S))))
        found.append(Stretch(1, max(start, min(before_end, opened)), _until(line, opened, end, 0.0)))
    for turn_id in (*turn_ids, _EARLIER_RECORD):
        for start, end in turns[turn_id].plays[:] if turn_id in turns else ():
            found += [
                Stretch(1, start, _until(line, start, end, 0.0)),
                Stretch(0, start, _until(line, start, end, -_BEFORE_S)),
            ]
    return [stretch for stretch in found if stretch.end_s > stretch.start_s]


def _until(line: list[tuple[float, int]], start: float, end: float, margin: float) -> float:
    """`end` and its echo, or where the turn after `start` begins, whatever is earlier."""
    following = next((opened for opened, _ in line if opened > start), None)
    return end + _AFTER_S if following is None else min(end + _AFTER_S, following + margin)


def _first_words(folder: Path, turn_ids: set[int]) -> str:
    for line in event_lines(folder):
        entry = entry_of(line) or {}
        if entry.get("event") in (TurnOpened.__name__, TurnTranscribed.__name__, ReplyFinished.__name__):
            text = entry.get("text")
            if entry.get("turn_id") not in turn_ids and isinstance(text, str) and text.split():
                return first_words_of(text)
    return ""


def _drop_lines(folder: Path, turns: dict[int, _Turn], turn_ids: set[int]) -> None:
    asked = {number for turn_id in turn_ids if turn_id in turns for number in turns[turn_id].asked}
    with ExportFile(folder / EVENTS, is_private=True) as file:
        for number, line in enumerate(event_lines(folder)):
            entry = entry_of(line)
            if entry is not None and entry.get("turn_id") not in turn_ids and number not in asked:
                file.write(line if line.endswith(b"\n") else line + b"\n")


def _remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise in_words(file, error) from error


def _replace(file: Path, document: dict[str, Any]) -> None:
    with ExportFile(file, is_private=True) as opened:
        opened.write(json.dumps(document, ensure_ascii=False).encode(errors="replace"))
