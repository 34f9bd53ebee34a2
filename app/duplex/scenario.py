"""A scenario: what the simulated user says in a conversation, when, and in which room.

The user waits for the assistant as a person does: a question comes after a silence, an interruption some time
into the reply. `RecordedScenario` is a fixed recording instead. `GROUPS` are what the built-in scenarios are
about. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from app.duplex.segments import SegmentKind, UserSegment
from engine_runtime.types import Pcm

Group = Literal["pauses", "interruptions", "backchannels", "echo", "noise"]
GROUPS: tuple[Group, ...] = get_args(Group)
ECHO_DB = (6.0, 12.0, 20.0)
"""Echo return losses."""
NOISE_SNR_DB = (20.0, 10.0, 0.0)
"""Speech against noise."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """One utterance with its pauses, at room.RATE. Times in seconds from its first sample."""

    kind: SegmentKind
    pcm: Pcm
    start_s: float
    """Start of the speech."""
    end_s: float
    pauses: tuple[tuple[float, float], ...] = ()
    text: str = ""

    def segment(self, at_s: float) -> UserSegment:
        """The annotation of the utterance, said from `at_s` on."""
        pauses = tuple((at_s + start, at_s + end) for start, end in self.pauses)
        return UserSegment(self.kind, at_s + self.start_s, at_s + self.end_s, pauses, self.text)


@dataclass(frozen=True, slots=True)
class Cue:
    """Something said after `gap_s` of silence, and what is said over the reply, `over_after_s` into it."""

    utterance: Utterance
    gap_s: float
    over: Utterance | None = None
    over_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RoomConditions:
    """Echo and noise. `loss_db` is the echo return loss, None with headphones."""

    loss_db: float | None = None
    delay_ms: float = 0.0
    skew_ppm: float = 0.0
    noise_rms: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A conversation. `group` is what it is about."""

    name: str
    group: str
    room: RoomConditions
    cues: tuple[Cue, ...]


@dataclass(frozen=True, slots=True)
class RecordedScenario:
    """The user's channel as recorded, at room.RATE, with its annotations."""

    name: str
    group: str
    room: RoomConditions
    pcm: Pcm
    segments: tuple[UserSegment, ...]
