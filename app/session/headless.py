"""A conversation without window and sound card: the turns found in a WAV file, or a typed question.

In: a file or a text, and an engine. Out: reply speech, a stereo record, a trace, and a report as plain
values. The file replaces the microphone in an ordinary session, so voice activity detection and turn-taking
are those of the window. By default sound runs on a virtual clock, faster than real time; durations of the
engine are real. While a turn is answered the file is paused, so that each reply ends before the next question
of the file; without `holds_samples` it continues, and may interrupt. Runs in the thread of its caller, beside
the threads of the session.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from app.audio.device_streams import DEVICE_RATE_HZ
from app.audio.devices import DeviceList
from app.audio.ring import Ring
from app.audio.wav import WavReader, WavWriter
from app.audio.wav_streams import WavSpeaker
from app.dialog.vad import Vad
from app.export import ExportFile, check_target, in_words
from app.session.clocks import RealClock, VirtualClock
from app.session.commands import AskText, PlaySample
from app.session.conversation_folder import SOUND
from app.session.end_of_turn_worker import DetectorFactory
from app.session.engine_jobs import EngineNotice
from app.session.engine_slot import EngineSource
from app.session.events import (
    CaptionsNoticed,
    ErrorRaised,
    Event,
    Levels,
    RecordingStopped,
    ReplyCut,
    ReplyFinished,
    SampleFinished,
    SampleProgress,
    SampleStarted,
    SessionState,
    StateChanged,
)
from app.session.report import ConversationReport, write_chrome_trace
from app.session.session import Session
from app.session.session_settings import Recording, SessionSettings
from engine_runtime.errors import AudioInputError, ExportError, MossVoiceError
from engine_runtime.types import Pcm

_GAP_S = 0.5
"""Silence between two replies in the file of reply speech."""
_POLL_S = 0.005
_CAPTIONS_S = 60.0
_STOP_S, _STOP_AT_ONCE_S = 5.0, 0.3
"""Time limits for the threads to end: usually, and while a user waits for the end of the process."""
_LOUD_DBFS = -30.0
"""Level of well recorded speech; a louder signal without detected speech is something else."""
_LOUD_ADVICE = (
    "It is loud enough but nothing in it sounds like speech. Record a clear voice without other sound."
)
_QUIET_ADVICE = "Record it louder, closer to the microphone or with a clearer voice."

Progress = Callable[[float], None]
"""Receives how much of the work is done, 0 to 1."""
_COPIED_AT_ONCE = 1 << 20


class ConversationError(MossVoiceError):
    """A turn failed; earlier replies are written."""


def run_file(
    engine_factory: EngineSource,
    *,
    wav_in: Path | None = None,
    text: str | None = None,
    settings: SessionSettings | None = None,
    out: Path | None = None,
    record: Path | None = None,
    trace: Path | None = None,
    realtime: bool = False,
    progress: Progress | None = None,
    notice: Callable[[str], None] | None = None,
    vad: Vad | None = None,
    end_of_turn: DetectorFactory | None = None,
) -> dict[str, Any]:
    """Hold the conversation and return the report (see ConversationReport.document).

    `out` receives the reply speech alone, at the engine's rate, with half a second of silence between
    replies; `record` the conversation as a folder (see conversation_folder.py), or, if its name ends in .wav,
    the stereo sound alone; `trace` the timings for chrome://tracing. `realtime`
    paces the sound as a device would; `notice` gets what needs no action. Kind of reply, seed and eagerness
    come from `settings`; `vad` and `end_of_turn` are those of `Session`. Raises AudioInputError for a file
    that cannot be used or holds no speech, ExportError, and MossVoiceError for a turn or an engine that
    failed (earlier replies are written
    first).
    """
    if (wav_in is None) == (text is None):
        raise ValueError("give either wav_in or text")
    for file in filter(None, (out, trace)):
        check_target(file)
    if wav_in is not None:
        WavReader(wav_in).close()  # refuse a file that cannot be used before an engine is loaded
    settings = settings or SessionSettings()
    with _recorded(record) as recording:
        settings = replace(settings, hear_samples=False, recording=recording)
        conversation = _Conversation(engine_factory, settings, realtime, progress, notice, vad, end_of_turn)
        conversation.hold(wav_in, text)
        if out is not None and conversation.replies:
            _write_replies(out, list(conversation.replies.values()))
    if trace is not None and conversation.report.has_turns:
        write_chrome_trace(trace, conversation.report.timings)
    if conversation.error is not None:
        raise conversation.error
    document = conversation.report.document()
    if wav_in is not None and not document["turns"]:
        advice = _LOUD_ADVICE if conversation.loudest_dbfs > _LOUD_DBFS else _QUIET_ADVICE
        raise AudioInputError(
            "No speech was found in {file} (its loudest moment has {loudest_dbfs:.0f} dBFS).",
            "{remedy}",
            file=wav_in,
            loudest_dbfs=conversation.loudest_dbfs,
            remedy=advice,
        )
    if out is not None and not conversation.replies:
        raise ConversationError(
            "No reply has any speech, so {out} was not written.", "Ask something else.", out=out
        )
    return document


class _Conversation:
    """One session from start to stop, and its results."""

    def __init__(
        self,
        engine_factory: EngineSource,
        settings: SessionSettings,
        realtime: bool,
        progress: Progress | None,
        notice: Callable[[str], None] | None,
        vad: Vad | None,
        end_of_turn: DetectorFactory | None,
    ) -> None:
        self.report = ConversationReport()
        self.replies: dict[int, tuple[Pcm, int]] = {}
        """Speech of each reply, as far as it was heard, and its rate."""
        self.error: MossVoiceError | None = None
        self.loudest_dbfs = -120.0
        self._progress, self._notice = progress, notice
        self._length_s = 0.0
        self._is_over = False
        self._session = Session(
            engine_factory,
            settings,
            _NoMicrophone(),
            WavSpeaker(DEVICE_RATE_HZ),
            clock=RealClock() if realtime else VirtualClock(),
            vad=vad,
            end_of_turn=end_of_turn,
            find_devices=lambda: DeviceList((), ()),
            look_for_devices=lambda: None,
        )

    def hold(self, wav_in: Path | None, text: str | None) -> None:
        """Ask, and collect events until all turns are answered."""
        self._session.start()
        stop_s = _STOP_S
        try:
            if wav_in is not None:
                self._session.send(PlaySample(wav_in))
            elif text is not None:
                self._session.send(AskText(text))
            while not self._is_over:
                if not self._session.is_running:
                    raise ConversationError("The conversation broke off.", "See the log file for details.")
                time.sleep(_POLL_S)
                for event in self._session.poll():
                    self._take(event)
            self._session.wait_for_captions(_CAPTIONS_S)
        except KeyboardInterrupt:
            stop_s = _STOP_AT_ONCE_S
            raise
        finally:
            self._session.stop(stop_s)
            for event in self._session.poll():  # position of the cut, if any
                self._take(event)

    def _take(self, event: Event) -> None:
        self.report.add(event)
        match event:
            case SampleStarted(_, seconds):
                self._length_s = seconds
            case SampleProgress(seconds) if self._progress is not None:
                self._progress(min(seconds / self._length_s, 1.0))
            case Levels(input_dbfs=level):
                self.loudest_dbfs = max(self.loudest_dbfs, level)
            case EngineNotice(problem) | CaptionsNoticed(problem) if self._notice is not None:
                self._notice(str(problem))
            case ReplyFinished(turn_id=turn_id):
                self._keep_speech(turn_id)
            case ReplyCut(turn_id=turn_id):
                self._keep_speech(turn_id)
            case ErrorRaised(problem):
                self.error = self.error or ConversationError.from_problem(problem)
                self._is_over = True
            case RecordingStopped(_, problem):
                self.error = self.error or ConversationError.from_problem(problem)
            case SampleFinished():
                self._is_over = True
            case StateChanged(SessionState.STOPPED):
                # A typed question has no other end: spoken replies end with their playback, text ones at
                # once.
                self._is_over = self._is_over or self.report.has_turns

    def _keep_speech(self, turn_id: int) -> None:
        pcm, rate = self._session.reply_audio(turn_id)
        self.replies.pop(turn_id, None)
        if len(pcm):
            self.replies[turn_id] = (pcm, rate)


class _NoMicrophone:
    """The microphone of a session that has none; it is never opened."""

    def __init__(self) -> None:
        self.sample_rate = DEVICE_RATE_HZ
        self.ring = Ring(1)
        self.name = ""
        self.latency_s = 0.0
        self.dropped_samples = 0

    def open(self, device: str | None, latency_s: float) -> None:
        """Cannot be done."""
        raise AudioInputError("This conversation has no microphone.", "Pass a recording or a text.")

    def close(self) -> None:
        """Does nothing."""

    def service(self, now_ns: int) -> None:
        """Nothing comes."""

    def is_lost(self) -> bool:
        """A missing device cannot be lost."""
        return False

    def sample_time_ns(self, index: float) -> int:
        """There is no sample."""
        raise ValueError("a missing microphone has no samples")


def _write_replies(path: Path, replies: list[tuple[Pcm, int]]) -> None:
    rate = replies[0][1]
    with WavWriter(path, rate) as writer:
        for number, (pcm, _) in enumerate(replies):
            if number:
                writer.write(np.zeros(round(_GAP_S * rate), dtype=np.float32))
            writer.write(pcm)


@contextmanager
def _recorded(target: Path | None) -> Iterator[Recording | None]:
    """Record into `target`: a WAV file if its name ends in .wav, else a folder, which must not exist yet.

    Afterwards it is in its place, complete or absent, and only its owner can read it. ExportError if that
    cannot be done.
    """
    if target is None:
        yield None
    elif target.suffix.lower() == ".wav":
        check_target(target)
        with _beside(target) as folder:
            yield Recording(folder, name="sound")
            _move(folder / "sound" / SOUND, target)
    else:
        if target.exists():
            raise ExportError(
                "{target} already exists.", "Choose another name for the recording.", target=target
            )
        with _beside(target):  # refused before an engine is loaded
            pass
        yield Recording(target.parent, name=target.name)


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    try:
        folder = tempfile.TemporaryDirectory(prefix=f".{target.name[:40]}.", dir=target.parent)
    except OSError as error:
        raise in_words(target, error) from error
    with folder as path:
        yield Path(path)


def _move(sound: Path, target: Path) -> None:
    if sound.is_file():  # a conversation without a turn leaves none
        with sound.open("rb") as source, ExportFile(target, is_private=True) as file:
            while content := source.read(_COPIED_AT_ONCE):
                file.write(content)
