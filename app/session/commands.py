"""Commands to a session: plain frozen values, safe in any thread.

Handed to `Session.send`; the dialog thread carries them out in that order. Their results are the events of
`app/session/events.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.session.engine_slot import EngineSource
from app.session.events import TurnSource
from app.session.session_settings import SessionSettings
from engine_runtime.types import Modality


@dataclass(frozen=True, slots=True)
class Start:
    """Open microphone and loudspeaker and listen. While the engine still loads, listening starts when it is
    ready."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Cancel the turn in progress and close the devices. Engine and conversation stay."""


@dataclass(frozen=True, slots=True)
class Mute:
    """Replace the microphone's samples by silence (`on`), or use them."""

    on: bool


@dataclass(frozen=True, slots=True)
class HoldToTalk:
    """The push-to-talk button was pressed (`on`) or released. The press opens a turn and stops a reply,
    the release commits the turn at once, or drops it (`nothing_heard`). ErrorRaised if the microphone cannot
    be heard."""

    on: bool


@dataclass(frozen=True, slots=True)
class SetDevices:
    """Use these devices, by name; None is the default one. Answered with DevicesChanged."""

    input: str | None = None
    output: str | None = None


@dataclass(frozen=True, slots=True)
class RescanDevices:
    """Look for devices again (also while listening: streams are reopened). Answered with DevicesChanged."""


@dataclass(frozen=True, slots=True)
class SetReply:
    """Kind of reply, from the next turn on."""

    modality: Modality


@dataclass(frozen=True, slots=True)
class SetVolume:
    """Loudness of all that is played, from 0 to 1 as heard; from the next block of the device on."""

    volume: float


@dataclass(frozen=True, slots=True)
class CheckMicrophone:
    """Record three seconds of the open microphone and play them. Ends the turn in progress. Answered with
    SoundChecked."""


@dataclass(frozen=True, slots=True)
class CheckLoudspeaker:
    """Play a chime. Ends the turn in progress. Answered with SoundChecked."""


@dataclass(frozen=True, slots=True)
class AskText:
    """Ask a typed question. Works without a microphone, and also while stopped."""

    text: str


@dataclass(frozen=True, slots=True)
class PlaySample:
    """Feed a WAV file through the capture path instead of the microphone, until its turns are answered."""

    path: Path


@dataclass(frozen=True, slots=True)
class PlayAgain:
    """Play the spoken reply of an earlier turn again. A reply in progress is cancelled."""

    turn_id: int


@dataclass(frozen=True, slots=True)
class CancelTurn:
    """Cancel the current turn, or stop its reply. Does nothing if there is none."""


@dataclass(frozen=True, slots=True)
class ApplySettings:
    """Replace all settings. Changed devices or latency reopen the streams."""

    settings: SessionSettings


@dataclass(frozen=True, slots=True)
class PlayRecording:
    """Play a part of a recorded conversation, both sides together. A reply in progress is cancelled."""

    path: Path
    start_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class RetryTurn:
    """Ask the question of an earlier turn again, as a new turn. That turn and all later ones are removed from
    the conversation. `source` and `text` are those of its TurnOpened."""

    turn_id: int
    source: TurnSource
    text: str = ""


@dataclass(frozen=True, slots=True)
class DeleteTurn:
    """Remove a question and its reply from the conversation, as if they had never been."""

    turn_id: int


@dataclass(frozen=True, slots=True)
class ContinueConversation:
    """Continue a recorded conversation instead of a new one, in its folder. Answered with
    ConversationContinued, or with ErrorRaised if the model is another one."""

    folder: Path
    """Path() if it was read elsewhere and nothing is to be written to it."""
    history: dict[str, Any]
    """The document of history.json."""
    last_turn_id: int
    seconds: float
    """Length of its line."""
    sample_rate: int = 0
    """Sample rate of its sound, 0 if it has none."""
    sound_s: float = 0.0
    """Length of its sound."""


@dataclass(frozen=True, slots=True)
class LoadEngine:
    """Close the engine and load another one in its place; cancels the turn in progress. Answered with
    EngineReady, or with a fatal ErrorRaised, after which another one can be loaded. The conversation
    continues if the model is the same."""

    factory: EngineSource


@dataclass(frozen=True, slots=True)
class NewConversation:
    """Forget the conversation so far. Turn ids continue."""


Command = (
    Start
    | Stop
    | Mute
    | HoldToTalk
    | SetDevices
    | RescanDevices
    | SetReply
    | SetVolume
    | CheckMicrophone
    | CheckLoudspeaker
    | AskText
    | PlaySample
    | PlayAgain
    | CancelTurn
    | ApplySettings
    | PlayRecording
    | RetryTurn
    | DeleteTurn
    | ContinueConversation
    | LoadEngine
    | NewConversation
)
