"""Writes recorded conversations to the disk, so that no other thread waits for it.

In: jobs of the recorder, in a queue: a conversation begins, sound, lines, what changed about it, it ends.
Out: the files of its folder (see conversation_folder.py), and the errors. After an error nothing more is
written until the next conversation begins; what was written stays. `run` is the body of the record thread.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from app.audio.growing_wav import GrowingWav, Stretch
from app.export import ExportFile, in_words
from app.session.clocks import PendingWork
from app.session.commands import Command, ContinueConversation, LoadEngine
from app.session.conversation_folder import (
    ABOUT,
    EVENTS,
    FORMAT,
    HISTORY,
    SOUND,
    RecordError,
    delete_conversation,
    first_words_of,
    lock,
    read_about,
    without_turns,
)
from app.session.erased_turns import erase
from app.session.events import (
    EngineLoading,
    Event,
    Levels,
    PlaybackLevel,
    ReplyFinished,
    SampleProgress,
    Timing,
    TurnCommitted,
    TurnOpened,
)
from app.session.recorded_values import plain
from app.session.session_settings import Recording
from engine_runtime.errors import ExportError, MossVoiceError

if TYPE_CHECKING:  # it imports torch
    from engine_runtime.conversation.snapshot import ConversationSnapshot

_LEFT_OUT = (Levels, PlaybackLevel, SampleProgress, EngineLoading, ContinueConversation, LoadEngine)
_METER_TIMINGS = frozenset({"playback_buffer"})
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Begin:
    """A conversation begins, or the one in `folder` is continued."""

    recording: Recording
    folder: Path | None
    about: dict[str, Any]
    is_same: bool = False
    """It is the conversation that was recorded last, whose first part is in another folder."""


@dataclass(frozen=True, slots=True)
class Sound:
    """More of both sides [n, 2]."""

    frames: NDArray[np.float32]
    sample_rate: int
    first_frame: int
    """First frame of the line."""


@dataclass(frozen=True, slots=True)
class CaptureGap:
    """Nothing was captured for this many frames, from `frame` of the time line on."""

    frame: int
    frames: int


@dataclass(frozen=True, slots=True)
class Line:
    """Something happened, `t` seconds after the beginning."""

    t: float
    what: Event | Command | CaptureGap
    place_s: float | None = None
    """Where its speech begins on the line, if it is a question to the microphone."""


@dataclass(frozen=True, slots=True)
class About:
    """These values of conversation.json are known now."""

    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class History:
    """The engine's history has changed."""

    snapshot: ConversationSnapshot


@dataclass(frozen=True, slots=True)
class End:
    """The conversation is over; it will not be continued if `is_ended`."""

    is_ended: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Erase:
    """Nothing of these turns is to be kept, neither in `folder`, which the conversation continues, nor in
    what was recorded of it since, if it `is_recorded`."""

    turn_ids: tuple[int, ...]
    folder: Path | None
    is_recorded: bool


WriteJob = Begin | Sound | Line | About | History | Erase | End | None
"""None ends the thread."""


class RecordWriter:
    """One conversation at a time."""

    def __init__(self, pending: PendingWork) -> None:
        self.problems: SimpleQueue[tuple[Path, MossVoiceError]] = SimpleQueue()
        """The folder that cannot be written to any more, and why."""
        self._jobs: SimpleQueue[WriteJob] = SimpleQueue()
        self._pending = pending
        self._folder: _OpenFolder | None = None
        self._written: list[Path] = []
        """Folders with parts of this conversation."""

    def submit(self, job: WriteJob) -> None:
        """Put a job in the queue; never blocks. Any thread."""
        self._pending.begin()
        self._jobs.put(job)

    @property
    def backlog(self) -> int:
        """Jobs that wait."""
        return self._jobs.qsize()

    def run(self) -> None:
        """Body of the record thread."""
        while True:
            job = self._jobs.get()
            try:
                if job is None:
                    self._close()
                    return
                self._write(job)
            except MossVoiceError as error:
                self._give_up(error)
            except Exception as error:
                _log.exception("the conversation cannot be recorded")
                self._give_up(
                    ExportError(
                        "The recording failed with a {kind}.", "See the log file.", kind=type(error).__name__
                    )
                )
            finally:
                self._pending.end()

    def _write(self, job: Begin | Sound | Line | About | History | Erase | End) -> None:
        if isinstance(job, Begin):
            self._close()
            self._folder = _OpenFolder(job)
            self._written = [*(self._written if job.is_same else ()), self._folder.path]
        elif isinstance(job, Erase):
            self._erase(job)
        elif isinstance(job, Sound):
            if self._folder is not None:
                self._folder.add_sound(job)
        elif self._folder is None:
            return
        elif isinstance(job, Line):
            self._folder.add_line(job)
        elif isinstance(job, About):
            self._folder.note(job.values)
        elif isinstance(job, History):
            self._folder.save_history(job.snapshot.document())
        else:
            folder, self._folder = self._folder, None
            folder.end(job)

    def _erase(self, job: Erase) -> None:
        """In all folders, also where one of them gives trouble, which is raised at the end."""
        own = self._folder.path if self._folder is not None else None
        written = self._written if job.is_recorded else []
        trouble: MossVoiceError | None = None
        for folder in dict.fromkeys([*([job.folder] if job.folder else ()), *written]):
            if folder != own and (folder / ABOUT).is_file():
                try:
                    descriptor = lock(folder)
                    try:
                        erase(folder, job.turn_ids)
                    finally:
                        os.close(descriptor)
                except MossVoiceError as error:
                    trouble = error
        if self._folder is not None:
            self._folder.erase(job.turn_ids)
        if trouble is not None:
            raise trouble

    def _give_up(self, error: MossVoiceError) -> None:
        folder, self._folder = self._folder, None
        self.problems.put((folder.path if folder is not None else Path(), error))
        if folder is not None:
            folder.close()

    def _close(self) -> None:
        if self._folder is not None:
            self._folder.close()
            self._folder = None


class _OpenFolder:
    """The files of the conversation that is recorded."""

    def __init__(self, begin: Begin) -> None:
        recording = begin.recording
        self.path = begin.folder or _make_folder(recording)
        self._sound: GrowingWav | None = None
        self._lines = -1
        self._committed: set[int] = set()
        self._erased: set[int] = set()
        self._silent: list[Stretch] = []
        """Parts of the line that were erased before their sound came."""
        self._lock = -1
        try:
            self._lock = lock(self.path)
            known = read_about(self.path) if begin.folder is not None else {}
            self._about: dict[str, Any] = {
                "format": FORMAT, "started": datetime.now().astimezone().isoformat(timespec="milliseconds"),
                "seconds": 0.0, "turns": 0, "first_words": "", **begin.about, **known, "is_ended": False,
            }  # fmt: skip
            self._lines = _open_lines(self.path / EVENTS)
            self.save(ABOUT, self._about)
        except OSError as error:
            self.close()
            raise in_words(self.path, error) from error
        except MossVoiceError:
            self.close()
            raise

    def add_sound(self, sound: Sound) -> None:
        """More of both sides."""
        if self._sound is None:
            self._sound = GrowingWav(self.path / SOUND, sound.sample_rate, 2)
            self._sound.pad_to(sound.first_frame)
        for stretch in self._silent:
            stretch.mute(sound.frames, self._sound.frames, self._sound.sample_rate)
        self._sound.append(sound.frames)

    def add_line(self, line: Line) -> None:
        """A command, an event or a timing."""
        entry = line_document(line)
        if entry is None or entry.get("turn_id") in self._erased:
            return
        content = (json.dumps(entry, ensure_ascii=False) + "\n").encode()
        try:
            if os.fstat(self._lines).st_nlink == 0:
                raise ExportError(
                    "{path} was deleted while it was written.", "Start another one.", path=self.path
                )
            if os.write(self._lines, content) < len(content):
                raise ExportError(
                    "{path} was not written: the disk is full.", "Free some space.", path=self.path
                )
        except OSError as error:
            raise in_words(self.path / EVENTS, error) from error
        self._sum_up(line)

    def note(self, values: dict[str, Any]) -> None:
        """Change conversation.json."""
        self._about |= values
        self.save(ABOUT, self._about)

    def erase(self, turn_ids: tuple[int, ...]) -> None:
        """Erase turns from all files, and from what comes later."""
        os.close(self._lines)
        self._lines = -1
        self._silent += erase(self.path, turn_ids)
        self._erased |= set(turn_ids)
        self._about = read_about(self.path)
        try:
            self._lines = _open_lines(self.path / EVENTS)
        except OSError as error:
            raise in_words(self.path, error) from error

    def save_history(self, history: dict[str, Any]) -> None:
        """Replace the engine's history."""
        self.save(HISTORY, without_turns(history, self._erased))

    def end(self, end: End) -> None:
        """Close the files; a conversation without a turn leaves none."""
        if self._about["turns"]:
            self.note({"seconds": round(end.seconds, 3), "is_ended": end.is_ended})
        self.close()
        if not self._about["turns"]:
            with contextlib.suppress(RecordError):  # deleted meanwhile
                delete_conversation(self.path)

    def close(self) -> None:
        """Close the files, and leave the conversation to others."""
        if self._sound is not None:
            self._sound.close()
        for descriptor in (self._lines, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._lines = self._lock = -1

    def _sum_up(self, line: Line) -> None:
        event = line.what
        if isinstance(event, TurnCommitted) and event.turn_id not in self._committed:
            self._committed.add(event.turn_id)
            self.note({"turns": self._about["turns"] + 1})
        elif isinstance(event, TurnOpened | ReplyFinished):
            words = self._about["first_words"] or first_words_of(event.text)
            self.note({"seconds": round(line.t, 3), "first_words": words})

    def save(self, name: str, document: dict[str, Any]) -> None:
        """Replace a file by this document."""
        with ExportFile(self.path / name, is_private=True) as file:
            file.write(json.dumps(document, ensure_ascii=False).encode())


def _make_folder(recording: Recording) -> Path:
    """A new folder, which only its owner can read."""
    name = recording.name or datetime.now().strftime("%Y-%m-%d %H.%M.%S")
    path = recording.root / name
    try:
        recording.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in range(2, 1_000):
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
                return path
            path = recording.root / f"{name} ({number})"
    except OSError as error:
        raise in_words(path, error) from error
    raise ExportError(
        "{root} has too many folders of this name.", "Choose another folder.", root=recording.root
    )


def _open_lines(file: Path) -> int:
    """A descriptor that appends lines. A line that was cut off, when the program was killed or the disk was
    full, is ended first: the next one would be lost with it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
    lines = os.open(file, flags, 0o600)
    size = os.fstat(lines).st_size
    if size:
        os.lseek(lines, size - 1, os.SEEK_SET)
        if os.read(lines, 1) != b"\n":
            os.write(lines, b"\n")
    return lines


def line_document(line: Line) -> dict[str, Any] | None:
    """The line as plain values; None for what is not recorded."""
    what = line.what
    if isinstance(what, _LEFT_OUT):
        return None
    t = round(line.t, 6)
    if isinstance(what, Timing):
        timing = what.event
        if timing.name in _METER_TIMINGS:
            return None
        return {
            "t": t, "timing": timing.name, "turn_id": timing.turn_id,
            "duration_ms": round(timing.duration_ms, 3), "attributes": timing.attributes,
        }  # fmt: skip
    kind = "command" if isinstance(what, Command) else "event"
    place = {} if line.place_s is None else {"place_s": round(line.place_s, 6)}
    return {"t": t, kind: type(what).__name__, **plain(what), **place}
