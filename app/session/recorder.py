"""Records conversations: what was captured, what was played, and what happened, on one time line.

In: captured blocks, the loudspeaker's tap, events and commands of the session. Out: jobs for the record
writer; RecordingStopped when it cannot write any more. A recording begins with the first sound or question
after it was requested, and ends with the conversation. While nothing is heard, played or said the line stands
still, so that a pause of hours takes no room. Dialog thread; `note` may be called from any.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from app.audio.stereo_track import StereoTrack
from app.audio.streams import AudioOutput, PlayedTap
from app.session.capture import Capture, CapturedBlock
from app.session.clocks import Clock
from app.session.commands import (
    AskText,
    Command,
    ContinueConversation,
    PlaySample,
    RetryTurn,
    Start,
)
from app.session.events import EngineReady, Event, RecordingStopped, TurnCommitted, TurnsRemoved
from app.session.record_writer import (
    About,
    Begin,
    CaptureGap,
    End,
    Erase,
    History,
    Line,
    RecordWriter,
    Sound,
)
from app.session.recorded_values import plain
from app.session.session_settings import Recording, SessionSettings
from engine_runtime.errors import Problem

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
_BEGINNINGS = (Start, AskText, PlaySample, RetryTurn)


class ConversationRecorder:
    """One recording at a time, or none."""

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
        """What is to be recorded with the next beginning, or is recorded now."""
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
        """That of the conversation in progress, if it was begun in an earlier run of the program."""
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
            # Path() would be the current folder, which may be a conversation, too.
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
        """The present place on the line."""
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
            self._is_same, self._continued_folder = False, None

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
