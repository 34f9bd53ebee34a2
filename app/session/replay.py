"""Replays the microphone of a recorded conversation through this build, and reports the differences.

In: the folder of a conversation, an engine. Out: what was decided, said and generated then and now, as plain
values. The replay is recorded as well, and the two records are compared turn by turn: positions, decisions,
texts. Times are compared in samples of the microphone, not by the clock: how long a reply takes to make
differs from run to run. Speech to the microphone is compared by its place in the recording: a conversation
may have begun long after the microphone was opened.

A file that took the microphone's place waits while a turn is answered, as it did then; a microphone continues
at the recorded times, with the questions and commands of the user in between. On the virtual clock. Runs in
the thread of its caller.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from app.audio.device_streams import DEVICE_RATE_HZ
from app.audio.devices import DeviceList
from app.audio.flac import sound_frames
from app.audio.growing_wav import GrowingWav
from app.audio.ring import Ring
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
from app.session.conversation_folder import (
    HISTORY,
    RecordError,
    list_conversations,
    read_about,
    read_events,
    read_history,
    sound_of,
)
from app.session.end_of_turn_worker import DetectorFactory
from app.session.engine_slot import EngineSource
from app.session.events import (
    ConversationContinued,
    ErrorRaised,
    SampleFinished,
    SessionState,
    StateChanged,
)
from app.session.recorded_values import revived, settings_of
from app.session.recorder import CaptureGap
from app.session.session import Session
from app.session.session_settings import Recording, SessionSettings
from engine_runtime.errors import MossVoiceError
from engine_runtime.types import Pcm

_POLL_S = 0.005
_FRAMES_S = 0.8
"""A whole number of VAD frames (32 ms) and of codes (80 ms)."""
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
_RING_SECONDS = 2.0
_REST_S = 2.0
"""Silence after the end of the record, in which a last turn ends."""
_MOST_AT_ONCE_S = 0.03
_PLACES = 3
_SAME_S = 0.0011
"""Times that differ by a rounding are the same."""
_OF_TURN = {
    "TurnOpened": ("source", "text"),
    "TurnCommitted": ("seconds", "start_s"),
    "TurnCancelled": ("reason",),
    "ReplyFinished": ("modality", "text", "seconds", "user_codes", "codes", "finish_reason"),
}
_DECIDED = ("kind", "reason", "stage")
"""Attributes of a decision that are compared; its time and cost are not."""
_OF_SPEED = frozenset({"speculate", "predict", "confirm", "roll_back", "listen"})
"""Decisions that depend on how fast the engine or the detector is."""


class ReplayError(MossVoiceError):
    """A conversation cannot be replayed."""


def replay(
    folder: Path,
    engine_factory: EngineSource,
    *,
    vad: Vad | None = None,
    end_of_turn: DetectorFactory | None = None,
) -> dict[str, Any]:
    """Replay and return {"folder", "turns", "is_same", "differences"} as `compare` does.

    Raises RecordError for a folder that is no conversation, ReplayError for one without sound and questions,
    and the errors of the engine.
    """
    about = read_about(folder)
    commands = _commands(folder)
    sound = sound_of(folder) if "hears_file" in about else None
    has_sound = sound is not None and sound_frames(sound)[0] > 0
    if not has_sound and not commands:
        raise ReplayError(
            "{folder} holds neither sound nor a question to replay.", "Choose another one.", folder=folder
        )
    with tempfile.TemporaryDirectory(prefix="moss-voice-") as kept:
        recording = Recording(Path(kept), name="now")
        settings = settings_of(about.get("settings"), SessionSettings())
        settings = dataclasses.replace(settings, hear_samples=False, recording=recording, captions=None)
        sample = Path(kept) / "microphone.wav"
        hears_file = has_sound and about["hears_file"]
        if hears_file and sound is not None:
            _write_captured(folder, sound, sample)
        late_s = 0.0 if hears_file else _late_s(about)
        microphone = RecordedMicrophone(sound if has_sound and not hears_file else None, commands, late_s)
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
            raise ReplayError("This build detects no turn in {folder}.", folder=folder)
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
                raise ReplayError("The replay broke off.", "See the log file for details.")
            time.sleep(_POLL_S)
            for event in session.poll():
                if isinstance(event, ErrorRaised) and event.turn_id is None:
                    raise ReplayError.from_problem(event.problem)
                if isinstance(event, ConversationContinued):
                    session.send(PlaySample(sample) if sample is not None else Start())
                is_over = is_over or isinstance(event, SampleFinished)
                if isinstance(event, StateChanged):
                    microphone.is_listened_to = event.state is SessionState.LISTENING
            is_over = is_over or microphone.is_over
    finally:
        session.stop()


def _late_s(about: dict[str, Any]) -> float:
    """Silence that aligns the VAD frames with the recorded ones: they count from the opening of the
    microphone, which may have been long before the conversation began."""
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


def _write_captured(folder: Path, sound: Path, target: Path) -> None:
    """The left side without the gaps in which the file waited."""
    found = (
        revived(CaptureGap, entry) for entry in read_events(folder) if entry.get("event") == "CaptureGap"
    )
    gaps = [(gap.frame, gap.frames) for gap in found if gap is not None and min(gap.frame, gap.frames) >= 0]
    with WavReader(sound, channel=0) as reader:
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


class RecordedMicrophone:
    """The left side of a recording, straight through, in place of a microphone; without a file, silence.

    Unlike a file that is played as a sample it never waits, and it is processed as a microphone.
    """

    def __init__(
        self, file: Path | None, commands: deque[tuple[float, Command]], late_s: float = 0.0
    ) -> None:
        """AudioInputError if the file cannot be used. `commands` are sent when they are due, oldest first.
        `late_s` of silence come before all."""
        self._reader = WavReader(file, channel=0) if file is not None else None
        self.sample_rate = self._reader.sample_rate if self._reader is not None else DEVICE_RATE_HZ
        self.ring = Ring(int(_RING_SECONDS * self.sample_rate))
        self.name = ""
        self.latency_s = 0.0
        self.send: Callable[[Command], None] = lambda _: None
        """Takes the commands."""
        self.is_listened_to = False
        """Whether the session waits for speech."""
        self._commands = commands
        self._late = round(late_s * self.sample_rate)
        self._origin_ns: int | None = None
        self._given = 0
        self._quiet = 0
        """Samples given since all was said and answered."""

    @property
    def dropped_samples(self) -> int:
        """Samples that found no room in the ring."""
        return self.ring.dropped

    @property
    def is_over(self) -> bool:
        """Whether all was said, and answered."""
        return self._quiet > _REST_S * self.sample_rate

    def open(self, device: str | None, latency_s: float) -> None:
        """Begin with the next `service`; the arguments are ignored."""
        self.name = "recording"

    def close(self) -> None:
        """Stop; reopening continues from here."""
        self.name, self._origin_ns = "", None

    def service(self, now_ns: int) -> None:
        """Deliver the samples that are due at `now_ns`, and send the commands that are."""
        if not self.name:
            return
        if self._origin_ns is None:
            self._origin_ns = now_ns - self._given * 1_000_000_000 // self.sample_rate
        due = (now_ns - self._origin_ns) * self.sample_rate // 1_000_000_000 - self._given
        due = min(due, round(_MOST_AT_ONCE_S * self.sample_rate))
        if due <= 0:
            return
        block = np.zeros(due, dtype=np.float32)
        silent = min(max(self._late - self._given, 0), due)
        speech = self._reader.read(due - silent) if self._reader is not None else block[:0]
        block[silent : silent + len(speech)] = speech
        self._given += due
        self.ring.write(block)
        while self._commands and self._commands[0][0] * self.sample_rate < self._given - self._late:
            self.send(self._commands.popleft()[1])
        is_quiet = self.is_listened_to and not len(speech) and not self._commands
        self._quiet = self._quiet + due if is_quiet else 0

    def is_lost(self) -> bool:
        """Never."""
        return False

    def sample_time_ns(self, index: float) -> int:
        """When sample `index` was due."""
        return (self._origin_ns or 0) + round(index * 1e9 / self.sample_rate)


@dataclass(slots=True)
class _RecordedTurn:
    values: dict[str, Any] = field(default_factory=dict)
    decisions: list[str] = field(default_factory=list)


def compare(before: Path, now: Path, late_s: float = 0.0) -> dict[str, Any]:
    """`now` is the record of a microphone that delivered that of `before` after `late_s` of silence. Returns
    {"folder": the first one, "turns": their number in it, "is_same", "differences"}, each difference with
    "turn", "what", "recorded" and "replayed"; turns by their number in order. RecordError."""
    turns = _turns(before, late_s), _turns(now)
    differences: list[dict[str, Any]] = []
    for number in range(max(map(len, turns))):
        first, second = (side[number] if number < len(side) else {} for side in turns)
        differences += [
            {"turn": number + 1, "what": name, "recorded": first.get(name), "replayed": second.get(name)}
            for name in {**first, **second}
            if not _are_same(first.get(name), second.get(name))
        ]
    return {
        "folder": str(before),
        "turns": len(turns[0]),
        "is_same": not differences,
        "differences": differences,
    }


def _are_same(first: Any, second: Any) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        return abs(first - second) < _SAME_S
    return bool(first == second)


def _turns(folder: Path, late_s: float | None = None) -> list[dict[str, Any]]:
    """The values of each committed turn, in order. With `late_s`, speech begins so long after its place."""
    found: dict[int, _RecordedTurn] = {}
    for entry in read_events(folder):
        turn_id = entry.get("turn_id") or 0
        if turn_id < 1:
            continue
        turn = found.setdefault(turn_id, _RecordedTurn())
        kind = str(entry.get("event"))
        for name in _OF_TURN.get(kind, ()):
            value = entry.get(name)
            if (
                name == "start_s"
                and late_s is not None
                and isinstance(place_s := entry.get("place_s"), float)
            ):
                value = place_s + late_s
            turn.values[f"{kind}.{name}"] = round(value, _PLACES) if isinstance(value, float) else value
        if entry.get("timing") == "decision":
            known = entry.get("attributes", {})
            if str(known.get("kind")) not in _OF_SPEED:
                turn.decisions.append(" ".join(str(known[name]) for name in _DECIDED if name in known))
    codes = _codes(folder)
    return [
        {**turn.values, "decisions": turn.decisions, "reply": codes.get(turn_id)}
        for turn_id, turn in sorted(found.items())
        if "TurnCommitted.seconds" in turn.values
    ]


def _codes(folder: Path) -> dict[int, list[list[int]]]:
    """The tokens of each reply in the engine's history."""
    if not (folder / HISTORY).exists():
        return {}
    try:
        return {entry["turn_id"]: entry["reply"] for entry in read_history(folder)["exchanges"]}
    except (KeyError, TypeError) as error:
        raise RecordError(
            "{folder} is damaged.", "Choose another conversation.", folder=folder / HISTORY
        ) from error
