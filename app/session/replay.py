"""Replays the microphone of a recorded conversation through this build, and reports the differences.

In: the folder of a conversation, an engine. Out: what was decided, said and generated then and now, as plain
values. The replay is recorded as well, and the two records are compared. A file that took the microphone's
place waits while a turn is answered, as it did then; a microphone continues at the recorded times, with the
questions and commands of the user in between. On the virtual clock. Runs in the thread of its caller.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.audio.device_streams import DEVICE_RATE_HZ
from app.audio.devices import DeviceList
from app.audio.growing_wav import GrowingWav, frames_of
from app.audio.wav import WavReader
from app.audio.wav_streams import WavSpeaker
from app.dialog.vad import Vad
from app.session.clocks import VirtualClock
from app.session.commands import (
    AskText,
    CancelTurn,
    Command,
    ContinueConversation,
    DeleteTurn,
    HoldToTalk,
    PlaySample,
    RetryTurn,
    SetReply,
    Start,
)
from app.session.conversation_folder import SOUND, list_conversations, read_about, read_events, read_history
from app.session.end_of_turn_worker import DetectorFactory
from app.session.engine_source import EngineSource
from app.session.events import (
    ConversationContinued,
    ErrorRaised,
    SampleFinished,
    SessionState,
    StateChanged,
)
from app.session.record_comparison import compare
from app.session.record_writer import CaptureGap
from app.session.recorded_microphone import RecordedMicrophone
from app.session.recorded_values import revived, settings_of
from app.session.recording import Recording
from app.session.session import Session
from app.session.session_settings import SessionSettings
from engine_runtime.errors import MossVoiceError
from engine_runtime.types import Pcm

_POLL_S = 0.005
_FRAMES_S = 0.8
"""A whole number of frames of the Vad (32 ms) and of codes (80 ms)."""
_COMMANDS: dict[str, type[Command]] = {
    kind.__name__: kind
    for kind in (
        AskText,
        CancelTurn,
        HoldToTalk,
        SetReply,
        RetryTurn,
        DeleteTurn,
    )
}


class ReplayError(MossVoiceError):
    """A conversation cannot be replayed."""


def replay(
    folder: Path,
    engine_factory: EngineSource,
    *,
    vad: Vad | None = None,
    end_of_turn: DetectorFactory | None = None,
) -> dict[str, Any]:
    """Replay and return {"folder", "turns", "is_same", "differences"}; see record_comparison.py.

    Raises RecordError for a folder that is no conversation, ReplayError for one without sound and questions,
    and the errors of the engine.
    """
    about = read_about(folder)
    commands = _commands(folder)
    has_sound = frames_of(folder / SOUND)[0] > 0 and "hears_file" in about
    if not has_sound and not commands:
        raise ReplayError(f"{folder} holds neither sound nor a question to replay. Choose another one.")
    with tempfile.TemporaryDirectory(prefix="moss-voice-") as kept:
        recording = Recording(Path(kept), name="now")
        settings = settings_of(about.get("settings"), SessionSettings())
        settings = dataclasses.replace(settings, hear_samples=False, recording=recording)
        sample = Path(kept) / "microphone.wav"
        hears_file = has_sound and about["hears_file"]
        if hears_file:
            _write_captured(folder, sample)
        late_s = 0.0 if hears_file else _late_s(about)
        microphone = RecordedMicrophone(
            folder / SOUND if has_sound and not hears_file else None, commands, late_s
        )
        session = Session(
            engine_factory,
            settings,
            microphone,
            WavSpeaker(DEVICE_RATE_HZ),
            clock=VirtualClock(),
            vad=vad,
            end_of_turn=end_of_turn,
            find_devices=lambda: DeviceList((), ()),
            look_for_devices=lambda: None,
        )
        opened = (entry for entry in read_events(folder) if entry.get("event") == "TurnOpened")
        first_turn = min((entry.get("turn_id") or 1 for entry in opened), default=1)
        history = read_history(folder)
        _hold(session, microphone, sample if hears_file else None, history, first_turn)
        made = list_conversations(Path(kept))
        if not made:
            raise ReplayError(f"This build detects no turn in {folder}.")
        return compare(folder, made[0].folder, late_s)


def _hold(
    session: Session,
    microphone: RecordedMicrophone,
    sample: Path | None,
    history: dict[str, Any],
    first_turn: int,
) -> None:
    """Hold the conversation from an empty history with the same random draws and numbers of turns, to its
    end."""
    microphone.send = session.send
    session.start()
    try:
        beginning = history | {"exchanges": [], "num_commits": 0, "num_forgotten": 0}
        session.send(ContinueConversation(Path(), beginning, first_turn - 1, 0.0))
        is_over = False
        while not is_over:
            if not session.is_running:
                raise ReplayError("The replay broke off. See the log file for details.")
            time.sleep(_POLL_S)
            for event in session.poll():
                if isinstance(event, ErrorRaised) and event.turn_id is None:
                    raise ReplayError(f"{event.message} {event.what_to_do}".strip())
                if isinstance(event, ConversationContinued):
                    session.send(PlaySample(sample) if sample is not None else Start())
                is_over = is_over or isinstance(event, SampleFinished)
                if isinstance(event, StateChanged):
                    microphone.is_listened_to = event.state is SessionState.LISTENING
            is_over = is_over or microphone.is_over
    finally:
        session.stop()


def _late_s(about: dict[str, Any]) -> float:
    """Silence that puts the frames of the Vad where they were: it counts from the opening of the microphone,
    which may have been long before the conversation began."""
    stream_s = about.get("stream_s")
    return -stream_s % _FRAMES_S if isinstance(stream_s, float) else 0.0


def _commands(folder: Path) -> deque[tuple[float, Command]]:
    """A request of the user, with its time in seconds."""
    found: deque[tuple[float, Command]] = deque()
    for entry in read_events(folder):
        kind = _COMMANDS.get(str(entry.get("command")))
        if kind is not None and (command := revived(kind, entry)) is not None:
            found.append((entry["t"], command))
    return found


def _write_captured(folder: Path, target: Path) -> None:
    """The left side without the gaps in which the file waited."""
    found = (
        revived(CaptureGap, entry) for entry in read_events(folder) if entry.get("event") == "CaptureGap"
    )
    gaps = [(gap.frame, gap.frames) for gap in found if gap is not None and min(gap.frame, gap.frames) >= 0]
    with WavReader(folder / SOUND, channel=0) as reader:
        captured = GrowingWav(target, reader.sample_rate, 1)
        position = 0
        for frame, frames in [*gaps, (reader.frames, 0)]:
            for block in _blocks(reader, frame - position):
                captured.append(block[:, None])
            reader.skip(frames)
            position = frame + frames
        captured.close()


def _blocks(reader: WavReader, frames: int) -> Iterator[Pcm]:
    """The next `frames` samples, in blocks of a second."""
    while frames > 0:
        block = reader.read(min(frames, reader.sample_rate))
        if not len(block):
            return
        yield block
        frames -= len(block)
