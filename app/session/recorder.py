"""Records conversations: what was captured, what was played, and what happened, on one time line.

In: captured blocks, the loudspeaker's tap, events and commands of the session. Out: the files of a folder
(conversation_folder.py); RecordingStopped when it cannot write any more. A recording begins with the first
sound or question after it was requested, and ends with the conversation. While nothing is heard, played or
said the line stands still, so that a pause of hours takes no room.

`ConversationRecorder` belongs to the dialog thread; only its `note` may be called from any. It gives jobs to
the `RecordWriter`, whose `run` is the body of the record thread, so that no other thread waits for the disk.
After an error nothing more is written until the next conversation begins; what was written stays.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from app.audio.flac import pack, unpack
from app.audio.growing_wav import GrowingWav, Stretch
from app.audio.stereo_track import StereoTrack
from app.audio.streams import AudioOutput, PlayedTap
from app.export import ExportFile, in_words
from app.session.capture import Capture, CapturedBlock
from app.session.clocks import Clock, PendingWork
from app.session.commands import (
    AskText,
    Command,
    ContinueConversation,
    LoadEngine,
    PlaySample,
    RetryTurn,
    Start,
)
from app.session.conversation_folder import (
    ABOUT,
    EVENTS,
    FORMAT,
    HISTORY,
    PACKED_SOUND,
    SOUND,
    RecordError,
    delete_conversation,
    first_words_of,
    lock,
    read_about,
    sound_of,
    with_unpacked_sound,
    without_turns,
)
from app.session.erased_turns import erase
from app.session.events import (
    EngineLoading,
    EngineReady,
    Event,
    Levels,
    PlaybackLevel,
    RecordingStopped,
    ReplyFinished,
    SampleProgress,
    Timing,
    TurnCommitted,
    TurnOpened,
    TurnsRemoved,
    TurnTranscribed,
)
from app.session.recorded_values import plain
from app.session.session_settings import Recording, SessionSettings
from engine_runtime.errors import ExportError, MossVoiceError, Problem

if TYPE_CHECKING:  # it imports torch
    from engine_runtime.conversation.snapshot import ConversationSnapshot

_BLOCK_S = 0.25
"""Sound is handed to the writer in blocks of this length."""
_MOST_BACKLOG = 10_000
"""Maximum backlog of the writer in jobs: some minutes. A slower disk is too slow."""
_TAP_AGE_NS = 50_000_000
"""Sound that the loudspeaker was given earlier than this before the beginning is left out."""
_QUIET_NS = 2_000_000_000
"""The line of a recording without sound stands still when nothing has happened for this long."""
_MOST_SILENCE_S = 600.0
"""Longest silence that is written to continue a file. Beyond, the conversation continues in a new folder."""
_PACKING_PAUSE_S = 0.2
"""Pause between two steps of packing, each of which takes some 50 ms."""
_BEGINNINGS = (Start, AskText, PlaySample, RetryTurn)
_LEFT_OUT = (Levels, PlaybackLevel, SampleProgress, EngineLoading, ContinueConversation, LoadEngine)
_METER_TIMINGS = frozenset({"playback_buffer"})
_log = logging.getLogger(__name__)


class ConversationRecorder:
    """Records one conversation at a time."""

    def __init__(
        self,
        writer: RecordWriter,
        capture: Capture,
        audio_out: AudioOutput,
        clock: Clock,
        emit: Callable[[Event], None],
    ) -> None:
        self._writer = writer
        self._capture = capture
        self._audio_out = audio_out
        self._clock = clock
        self._emit = emit
        self._settings = SessionSettings()
        self._wanted: Recording | None = None
        """The settings of the present recording, or of the next one."""
        self._is_on = False
        self._origin_ns = 0
        self._latest_ns = 0
        """When something happened last."""
        self._track: StereoTrack | None = None
        self._tap: PlayedTap | None = None
        """The loudspeaker's tap that was read last."""
        self._has_heard = False
        self._stream_s: float | None = None
        """Where the stream of the microphone began on the line, in seconds; None for a file."""
        self._held: list[NDArray[np.float32]] = []
        self._held_frames = 0
        self._origin_s = 0.0
        self._rate = 0
        """Sample rate of the file that is continued, 0 for that of the microphone."""
        self._frames_given = 0
        self._engine: dict[str, Any] = {}
        self._history: ConversationSnapshot | None = None
        self._continued: ContinueConversation | None = None
        """The conversation to continue with the next beginning."""
        self._continued_folder: Path | None = None
        """Folder of the conversation in progress, if it was begun in an earlier run of the program."""
        self._is_same = False
        """Whether parts of the conversation in progress have been recorded."""
        self._is_waiting = False
        """Whether the answer of the engine to the continuation is pending."""
        capture.listener = self._hear

    @property
    def is_on(self) -> bool:
        """Whether a conversation is being recorded."""
        return self._is_on

    def apply(self, settings: SessionSettings) -> None:
        """Record as these settings say; a change ends the recording, and the next one begins with the next
        sound."""
        self._settings = settings
        if settings.recording != self._wanted:
            self.end(is_ended=False)
            self._wanted = settings.recording
            if self._wanted is not None and self._wanted.packs_sound:
                self._writer.submit(Pack(self._wanted.root))

    def service(self, now_ns: int) -> None:
        """Take what was played, hand over what is complete, report what the writer could not write."""
        if self._is_on:
            self._take_played()
        if self._is_on and self._track is None:
            self._stand_still(now_ns)
        if self._track is not None:
            self._hand_over(self._track, now_ns)
        if self._is_on and self._writer.backlog > _MOST_BACKLOG:
            self.end(is_ended=False)
            self._stop_for(
                "", Problem("The disk is too slow to record the conversation.", "Choose another folder.")
            )
        while not self._writer.problems.empty():
            folder, error = self._writer.problems.get()
            self._stop_for(str(folder), error.problem)

    def note(self, what: Event | Command) -> None:
        """Record an event or a command. Any thread; commands come in the dialog thread."""
        if isinstance(what, EngineReady):
            self._engine = {"bundle": what.bundle}
            if self._is_on:
                self._writer.submit(About(dict(self._engine)))
        if isinstance(what, ContinueConversation):
            self.end(is_ended=False)
            self._continued, self._is_waiting = what, True
            # Path() would be the current folder, which may itself be a conversation.
            self._continued_folder, self._is_same = what.folder if what.folder.name else None, False
        if isinstance(what, TurnsRemoved) and what.is_deleted and (self._is_same or self._continued_folder):
            self._writer.submit(Erase(what.turn_ids, self._continued_folder, self._is_same))
        if isinstance(what, _BEGINNINGS):
            self._begin()
        if self._is_on:
            self._latest_ns = self._clock.now_ns()
            place_s = None
            if isinstance(what, TurnCommitted) and what.seconds and self._stream_s is not None:
                place_s = what.start_s + self._stream_s
            self._writer.submit(Line(self.seconds, what, place_s))

    def settle(self, *, is_continued: bool) -> None:
        """The engine has answered a ContinueConversation."""
        self._is_waiting = False
        if not is_continued:
            self._continued = self._continued_folder = None

    def lose_engine(self) -> None:
        """There is no engine that would answer a ContinueConversation: the next one begins a conversation."""
        if self._is_waiting:
            self.settle(is_continued=False)

    def remember(self, history: ConversationSnapshot) -> None:
        """The engine's history has changed."""
        self._history = history
        if self._is_on:
            self._writer.submit(History(history))

    @property
    def seconds(self) -> float:
        """The current place on the time line."""
        track, now_ns = self._track, self._clock.now_ns()
        if track is not None:
            return track.frame_at(now_ns) / track.sample_rate
        return self._origin_s + (now_ns - self._origin_ns) / 1e9

    def pause(self, at_ns: int) -> None:
        """Nothing happened from this time on: the time line continues with the next sound."""
        if self._track is not None:
            self._track.pause(at_ns)

    def end(self, *, is_ended: bool) -> None:
        """The conversation is over, or not recorded any more. `is_ended`: it will not be continued."""
        if self._is_on:
            if self._track is not None:
                self._hand_over(self._track, self._clock.now_ns(), is_final=True)
            self._writer.submit(End(is_ended, self.seconds))
        self._is_on, self._track = False, None
        if is_ended:
            self._is_same, self._continued_folder, self._continued = False, None, None
            self._wanted = self._settings.recording  # also after an error

    def begin_anew(self) -> None:
        """The user begins another conversation: the present one is not continued at the next start, also if
        nothing was recorded of it in this run."""
        if self._continued_folder is not None and not self._is_same:
            self._writer.submit(Finish(self._continued_folder))
        self.end(is_ended=True)

    def close(self) -> None:
        """End the recording and the thread of the writer."""
        self.end(is_ended=False)
        self._writer.submit(None)

    # ---- inside ----

    def _begin(self) -> None:
        if self._is_on or self._wanted is None or self._is_waiting:
            return
        self._is_on, self._tap = True, None
        self._origin_ns = self._latest_ns = self._clock.now_ns()
        self._origin_s, self._rate, folder = 0.0, 0, None
        if (earlier := self._continued) is not None and self._can_continue(earlier, self._wanted):
            folder, self._origin_s, self._rate = earlier.folder, earlier.seconds, earlier.sample_rate
        self._continued = None
        about = {"settings": plain(self._settings), **self._engine}
        self._writer.submit(Begin(self._wanted, folder, about, self._is_same))
        self._is_same = True
        if self._history is not None:
            self._writer.submit(History(self._history))

    @staticmethod
    def _can_continue(earlier: ContinueConversation, wanted: Recording) -> bool:
        silence_s = earlier.seconds - earlier.sound_s if wanted.with_sound else 0.0
        return earlier.folder.parent == wanted.root and silence_s <= _MOST_SILENCE_S

    def _stand_still(self, now_ns: int) -> None:
        late_ns = now_ns - self._latest_ns - _QUIET_NS
        if late_ns > 0:
            self._origin_ns += late_ns
            self._latest_ns += late_ns

    def _hear(self, block: CapturedBlock) -> None:
        self._begin()
        if (track := self._sounding()) is not None:
            is_new = block.is_new or not self._has_heard
            start = track.captured
            frame = track.hear(
                block.pcm, block.sample_rate, block.first_ns, is_new=is_new, is_exact=block.is_file
            )
            began_s = frame / track.sample_rate - block.first / block.sample_rate
            self._stream_s = None if block.is_file else began_s
            if not self._has_heard:
                self._has_heard = True
                self._writer.submit(About({"hears_file": block.is_file, "stream_s": round(began_s, 6)}))
            if frame > start:
                gap = CaptureGap(start, frame - start)
                self._writer.submit(Line(start / track.sample_rate, gap))

    def _take_played(self) -> None:
        tap = self._audio_out.recorded
        pcm, first_ns = tap.read()
        if not len(pcm) or (self._tap is None and first_ns < self._origin_ns - _TAP_AGE_NS):
            return
        track = self._sounding()
        if track is not None:
            left_ns = first_ns + round(self._audio_out.latency_s * 1e9)
            track.play(pcm, tap.sample_rate, left_ns, is_new=tap is not self._tap)
            self._tap = tap

    def _sounding(self) -> StereoTrack | None:
        """The track, at the rate of the microphone, so that its samples are kept as they are; None if no
        sound is recorded."""
        if self._track is None and self._is_on and self._wanted is not None and self._wanted.with_sound:
            rate = self._rate or (self._capture.source or self._audio_out).sample_rate
            self._frames_given = round(self._origin_s * rate)
            self._track = StereoTrack(rate, self._origin_ns, self._frames_given)
            self._has_heard, self._stream_s = False, None
            self._held, self._held_frames = [], 0
        return self._track

    def _hand_over(self, track: StereoTrack, now_ns: int, *, is_final: bool = False) -> None:
        has_left, has_right = self._capture.source is not None, bool(self._audio_out.name)
        frames = track.take(now_ns, has_left=has_left, has_right=has_right, is_final=is_final)
        self._held.append(frames)
        self._held_frames += len(frames)
        if self._held_frames >= _BLOCK_S * track.sample_rate or is_final:
            sound = Sound(np.concatenate(self._held), track.sample_rate, self._frames_given)
            self._writer.submit(sound)
            self._frames_given += self._held_frames
            self._held, self._held_frames = [], 0

    def _stop_for(self, folder: str, problem: Problem) -> None:
        """Recording has failed; the conversation continues."""
        self._is_on, self._track, self._wanted = False, None, None
        self._emit(RecordingStopped(folder, problem))


# ---- jobs: dialog thread -> record thread ----


@dataclass(frozen=True, slots=True)
class Begin:
    """A conversation begins, or the one in `folder` is continued."""

    recording: Recording
    folder: Path | None
    about: dict[str, Any]
    is_same: bool = False
    """Whether it is the conversation that was recorded last, whose first part is in another folder."""


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
    """An event or command, `t` seconds after the beginning."""

    t: float
    what: Event | Command | CaptureGap
    place_s: float | None = None
    """Where its speech begins on the line, if it is a question to the microphone."""


@dataclass(frozen=True, slots=True)
class About:
    """Values of conversation.json that have become known."""

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
class Finish:
    """The conversation in `folder`, of which nothing is being recorded, will not be continued."""

    folder: Path


@dataclass(frozen=True, slots=True)
class Erase:
    """Nothing of these turns is to be kept, neither in `folder`, which the conversation continues, nor in
    what was recorded of it since, if it `is_recorded`."""

    turn_ids: tuple[int, ...]
    folder: Path | None
    is_recorded: bool


@dataclass(frozen=True, slots=True)
class Pack:
    """The sound of the conversations in `root` becomes FLAC, as far as none of them may be continued."""

    root: Path


WriteJob = Begin | Sound | Line | About | History | Erase | Finish | End | Pack | None
"""None ends the thread."""


# ---- record thread ----


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
        self._to_pack: deque[Path] = deque()
        self._packing: _Packing | None = None

    def submit(self, job: WriteJob) -> None:
        """Put a job in the queue; never blocks. Any thread."""
        self._pending.begin()
        self._jobs.put(job)

    @property
    def sound(self) -> Path | None:
        """The file with the sound of the conversation that is recorded now. Any thread."""
        folder = self._folder
        return None if folder is None else sound_of(folder.path)

    @property
    def backlog(self) -> int:
        """Jobs that wait."""
        return self._jobs.qsize()

    def run(self) -> None:
        """Body of the record thread."""
        while True:
            job = self._next()
            try:
                if job is None or isinstance(
                    job, Begin | Erase | Finish
                ):  # which may be about the same files
                    self._stop_packing()
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

    def _next(self) -> WriteJob:
        """The next job. Sound is packed while none comes, with pauses that leave the processor to replies."""
        while self._to_pack or self._packing is not None:
            try:
                return self._jobs.get(timeout=_PACKING_PAUSE_S)
            except Empty:
                self._pack()
        return self._jobs.get()

    def _pack(self) -> None:
        try:
            if self._packing is None:
                self._packing = _Packing(self._to_pack.popleft())
            if not self._packing.step():
                return
        except (MossVoiceError, OSError) as error:  # it stays a WAV file, which can be read as well
            _log.warning("the sound of a conversation is not packed: %s", error)
        if self._packing is not None:
            self._packing.close()
            self._packing = None

    def _stop_packing(self) -> None:
        if self._packing is not None:
            self._packing.close()
            self._to_pack.append(self._packing.folder)
            self._packing = None

    def _write(self, job: Begin | Sound | Line | About | History | Erase | Finish | End | Pack) -> None:
        if isinstance(job, Begin):
            self._close()
            self._folder = _OpenFolder(job)
            self._written = [*(self._written if job.is_same else ()), self._folder.path]
        elif isinstance(job, Erase):
            self._erase(job)
        elif isinstance(job, Finish):
            self._finish(job.folder)
        elif isinstance(job, Pack):
            self._to_pack.extend(with_unpacked_sound(job.root))
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
            if job.is_ended and folder.packs_sound:
                self._to_pack.append(folder.path)

    def _erase(self, job: Erase) -> None:
        """Erase in all folders; the error of one is raised after the others are done."""
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

    @staticmethod
    def _finish(folder: Path) -> None:
        try:
            descriptor = lock(folder)
            try:
                _save(folder / ABOUT, read_about(folder) | {"is_ended": True})
            finally:
                os.close(descriptor)
        except (MossVoiceError, OSError) as error:  # it was deleted, or belongs to another window
            _log.warning("a conversation cannot be ended: %s", error)

    def _give_up(self, error: MossVoiceError) -> None:
        folder, self._folder = self._folder, None
        self.problems.put((folder.path if folder is not None else Path(), error))
        if folder is not None:
            folder.close()

    def _close(self) -> None:
        if self._folder is not None:
            self._folder.close()
            self._folder = None


class _Packing:
    """The sound of a conversation on its way to FLAC; no other window continues it meanwhile."""

    def __init__(self, folder: Path) -> None:
        """RecordError if another window writes it, OSError if it was deleted."""
        self.folder = folder
        self._lock = lock(folder)
        self._steps = pack(folder / SOUND, folder / PACKED_SOUND)

    def step(self) -> bool:
        """Pack the next part; whether that was the last one."""
        return next(self._steps, self) is self

    def close(self) -> None:
        """Leave the conversation to others. A folder that was deleted on the way goes, too."""
        self._steps.close()
        os.close(self._lock)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


class _OpenFolder:
    """The files of the conversation that is recorded."""

    def __init__(self, begin: Begin) -> None:
        recording = begin.recording
        self.path = begin.folder or _make_folder(recording)
        self.packs_sound = recording.packs_sound
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
            self._unpack()
            self._sound = GrowingWav(self.path / SOUND, sound.sample_rate, 2)
            self._sound.pad_to(sound.first_frame)
        for stretch in self._silent:
            stretch.mute(sound.frames, self._sound.frames, self._sound.sample_rate)
        self._sound.append(sound.frames)

    def _unpack(self) -> None:
        """A packed file cannot grow. Of both, as after a kill, the WAV file is whole."""
        packed = self.path / PACKED_SOUND
        if packed.is_file() and not (self.path / SOUND).is_file():
            unpack(packed, self.path / SOUND)
        packed.unlink(missing_ok=True)

    def add_line(self, line: Line) -> None:
        """A command, an event or a timing."""
        entry = _line_document(line)
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
        elif isinstance(event, TurnOpened | TurnTranscribed | ReplyFinished):
            words = self._about["first_words"] or first_words_of(event.text)
            self.note({"seconds": round(line.t, 3), "first_words": words})

    def save(self, name: str, document: dict[str, Any]) -> None:
        """Replace a file by this document."""
        _save(self.path / name, document)


def _save(file: Path, document: dict[str, Any]) -> None:
    with ExportFile(file, is_private=True) as written:
        written.write(json.dumps(document, ensure_ascii=False).encode())


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


def _line_document(line: Line) -> dict[str, Any] | None:
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
