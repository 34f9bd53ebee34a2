"""Events of a session: plain frozen values, safe in any thread.

`Session.poll` returns them in the order in which they happened. Events of a turn carry its `turn_id` (1, 2,
3 ... over the life of the session), so that a receiver can drop stale events. Order within one turn:

    TurnOpened -> TurnExtended* -> TurnCommitted -> ReplyTextDelta* -> PlaybackStarted -> ReplyFinished
               -> PlaybackFinished

TurnCancelled may come at any point and is then the last event of the turn; ReplyCut comes right before it if
the turn was committed. TurnExtended may also come after TurnCommitted (the user continued): the reply so far
is discarded, and a new TurnCommitted follows. TurnTranscribed comes any time after the TurnCommitted whose
speech it has in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal

from app.audio.echo_cancellation import EchoMeasurement
from app.session.engine_jobs import EngineNotice, FlowSteps, FlowStepsSet
from engine_runtime.bundle.card import ModelCard
from engine_runtime.errors import Problem
from engine_runtime.timing import TimingEvent
from engine_runtime.types import FinishReason, Modality

TurnSource = Literal["voice", "sample", "text"]
MicrophoneVerdict = Literal["silent", "quiet", "no_speech", "clipping", "good"]
"""What a check of the microphone found. `no_speech`: loud enough, but nothing in it was speech."""


class SessionState(str, Enum):
    """State of the session."""

    STOPPED = "stopped"
    """Engine ready, devices closed. Typed questions and samples work."""
    LOADING = "loading"
    """The engine is being loaded."""
    LISTENING = "listening"
    """Devices open, no speech."""
    HEARING = "hearing"
    """The user speaks."""
    THINKING = "thinking"
    """The turn is committed; the reply is not audible yet."""
    SPEAKING = "speaking"
    """The reply is being played."""
    ERROR = "error"
    """The engine could not be loaded; an ErrorRaised says why. Another one can be loaded."""


CancelReason = Literal[
    "user", "barge_in", "too_short", "nothing_heard", "stopped", "error", "replaced", "output_lost"
]
"""`nothing_heard`: no speech while the button of push-to-talk was down; `output_lost`: the loudspeaker went
away while the reply was played."""


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The state of the session has changed."""

    state: SessionState
    is_paused: bool = False
    """The user speaks over a reply, which may be resumed."""
    is_reconnecting: bool = False
    """The connection to the server was lost and is being restored."""

    @property
    def can_stop(self) -> bool:
        """Whether there is a reply to stop."""
        return self.is_paused or self.state in (SessionState.THINKING, SessionState.SPEAKING)


@dataclass(frozen=True, slots=True)
class EngineLoading:
    """How much of the engine's files was loaded, 0 to 1; what follows, such as warm-up, is not counted."""

    share: float


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The engine is loaded and warmed up."""

    bundle: str
    load_s: float
    input_sample_rate: int
    output_sample_rate: int
    card: ModelCard = field(default_factory=ModelCard)
    """What the model can do, and in which languages."""
    keeps_history: bool = True
    """Whether it continues the conversation so far; False for another model than before."""
    flow_steps: FlowSteps | None = None
    """Euler steps of the flow; None where they cannot be chosen. A change comes as FlowStepsSet."""
    machine: str = ""
    """The GPU or processor that the engine runs on; "" for a server."""


@dataclass(frozen=True, slots=True)
class Levels:
    """Meters, about 20 times a second while devices are open. Levels are RMS in dBFS, -120 for silence."""

    input_dbfs: float
    output_dbfs: float
    vad_probability: float


@dataclass(frozen=True, slots=True)
class TurnOpened:
    """The user started a turn. `text` is the typed question, empty for speech."""

    turn_id: int
    source: TurnSource
    text: str = ""


@dataclass(frozen=True, slots=True)
class TurnExtended:
    """The user continued after a commit: the same turn is reopened, and its reply so far is discarded."""

    turn_id: int


@dataclass(frozen=True, slots=True)
class TurnCommitted:
    """The user's turn is over. `seconds` is the length of the speech (0 for text) and `start_s` its place in
    the captured audio, or in the file that is played as a sample."""

    turn_id: int
    seconds: float
    start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TurnTranscribed:
    """What the user said in a committed turn, in words: a moment after TurnCommitted, or long after the
    reply."""

    turn_id: int
    text: str


@dataclass(frozen=True, slots=True)
class CaptionsNoticed:
    """Why the user's speech has no words at present. The conversation continues."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class TurnCancelled:
    """The turn is dropped, or its reply is stopped (see ReplyCut)."""

    turn_id: int
    reason: CancelReason


@dataclass(frozen=True, slots=True)
class TurnsRemoved:
    """These turns, which may have come in an earlier run of the program, are not part of the conversation any
    more. `is_deleted`: the user deleted them, so nothing of them is kept; else they were asked again, and the
    record of what happened stays until a turn is deleted: those that cannot be seen any more go with it."""

    turn_ids: tuple[int, ...]
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class ConversationContinued:
    """The conversation recorded in this folder continues."""

    folder: Path


@dataclass(frozen=True, slots=True)
class ReplyCut:
    """The reply was stopped before it was fully played, possibly after it was generated (ReplyFinished).

    The conversation continues from what was heard: `heard_text`, `heard_s` seconds, `heard_codes`. If nothing
    was heard, question and reply are forgotten. `unheard_text` is the rest of the text, and `made_s` counts
    all generated audio. A text reply counts as heard as far as it was shown.
    """

    turn_id: int
    reason: CancelReason
    modality: Modality
    heard_text: str
    unheard_text: str
    heard_s: float
    made_s: float
    user_codes: int
    heard_codes: int


@dataclass(frozen=True, slots=True)
class ReplyTextDelta:
    """More text of the reply; `is_subtitle` if it is the text of a spoken reply."""

    turn_id: int
    text: str
    is_subtitle: bool


@dataclass(frozen=True, slots=True)
class PlaybackStarted:
    """The first sample of the reply (or of its repetition) was handed to the device."""

    turn_id: int


@dataclass(frozen=True, slots=True)
class ReplyFinished:
    """The reply is complete (a spoken one may still be playing). `seconds` is its audio, 0 for text;
    `user_codes` and `codes` count the speech codes of question and reply."""

    turn_id: int
    modality: Modality
    seconds: float
    text: str
    user_codes: int
    codes: int
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class PlaybackFinished:
    """The last sample of the reply (or of its repetition) was handed to the device."""

    turn_id: int


@dataclass(frozen=True, slots=True)
class Timing:
    """A measured duration; see the timing bus for names and attributes."""

    event: TimingEvent


@dataclass(frozen=True, slots=True)
class PlaybackLevel:
    """Generated reply audio that is not yet played, in milliseconds. About 20 times a second while
    speaking."""

    ms: float


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the session started: gaps in the playback, and captured samples that were lost."""

    underruns: int
    dropped_input: int


@dataclass(frozen=True, slots=True)
class SoundChecked:
    """A check of microphone or loudspeaker records, plays, or is over. The end of a recording has the verdict
    on it; silence is not played. `level_dbfs` is that of its loudest tenth of a second."""

    phase: Literal["recording", "playing", "done"]
    verdict: MicrophoneVerdict | None = None
    level_dbfs: float = -120.0


@dataclass(frozen=True, slots=True)
class MicrophoneSilent:
    """The open microphone delivers silence, or no longer (also because it was closed)."""

    on: bool


@dataclass(frozen=True, slots=True)
class EchoMeasured:
    """The measured echo of the loudspeaker in the microphone; at most once a second."""

    echo: EchoMeasurement


OffReason = Literal["setting", "server", "slow_engine", "slow_roll_back"]
"""setting: switched off; server: it cannot take a reply back; slow_engine: replies are made slower than real
time; slow_roll_back: the speech of a user who continues would wait for the engine."""


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Speculative replies of the session so far, and the cost of the discarded ones."""

    off_reason: OffReason | None = None
    """Why nothing is speculated at present."""
    speculated: int = 0
    confirmed: int = 0
    rolled_back: int = 0
    engine_ms: float = 0.0
    """Engine time spent on discarded replies, in milliseconds."""
    audio_s: float = 0.0
    """Speech that was discarded, in seconds."""
    steps: int = 0
    """Decode steps that were discarded."""
    roll_back_ms: float = 0.0
    """The longest time until the engine was ready for more speech after a roll back."""


@dataclass(frozen=True, slots=True)
class SpeculationMeasured:
    """What speculative replies have gained and cost so far; after each of them."""

    stats: SpeculationStats


@dataclass(frozen=True, slots=True)
class ErrorRaised:
    """Something failed, in words for the user. The conversation so far is kept.

    `turn_id` is the turn that it ended, `is_fatal` if the session cannot continue, `is_about_sound` if it is
    over once DevicesChanged names an open microphone and loudspeaker, `is_past` if it is over already.
    """

    problem: Problem
    turn_id: int | None = None
    is_fatal: bool = False
    is_about_sound: bool = False
    is_past: bool = False


@dataclass(frozen=True, slots=True)
class RecordingStopped:
    """The conversation is not recorded any more, and continues. What was recorded is in `folder`, "" if there
    is none."""

    folder: str
    problem: Problem


@dataclass(frozen=True, slots=True)
class SampleStarted:
    """A WAV file takes the microphone's place; `seconds` is its length."""

    path: Path
    seconds: float


@dataclass(frozen=True, slots=True)
class SampleProgress:
    """How much of the file was heard; about 20 times a second."""

    seconds: float


@dataclass(frozen=True, slots=True)
class SampleFinished:
    """The file was heard and its turns are answered, or it was stopped; the microphone is back."""

    path: Path


@dataclass(frozen=True, slots=True)
class DevicesChanged:
    """Names of the devices that can be chosen, and of those in use ("" if none is open)."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    input: str
    output: str
    descriptions: Mapping[str, str] = field(default_factory=dict)
    """Name -> what the system calls the device, where that is more than its name."""


@dataclass(frozen=True, slots=True)
class DeviceNoticed:
    """What a device does, in words for the user: it was replaced, is back, delivers silence or loses sound.
    The conversation continues."""

    problem: Problem


Event = (
    StateChanged
    | EngineLoading
    | EngineReady
    | Levels
    | TurnOpened
    | TurnExtended
    | TurnCommitted
    | TurnTranscribed
    | CaptionsNoticed
    | TurnCancelled
    | TurnsRemoved
    | ConversationContinued
    | ReplyCut
    | ReplyTextDelta
    | PlaybackStarted
    | ReplyFinished
    | PlaybackFinished
    | Timing
    | PlaybackLevel
    | Counters
    | EchoMeasured
    | SoundChecked
    | MicrophoneSilent
    | SpeculationMeasured
    | ErrorRaised
    | RecordingStopped
    | SampleStarted
    | SampleProgress
    | SampleFinished
    | DevicesChanged
    | DeviceNoticed
    | EngineNotice
    | FlowStepsSet
)
