"""Types that cross stage boundaries. Plain data, safe to pass between threads.

Every per-turn value carries its `turn_id`. Values that may become stale are computed under a `CancelScope`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Pcm = NDArray[np.float32]
"""Mono samples in [-1, 1], [n]."""
Codes = NDArray[np.int64]
"""Speech codes, [n]."""
Mel = NDArray[np.float32]
"""Log-mel, [n_mels, frames]."""


@dataclass(frozen=True, slots=True)
class VoicePrompt:
    """Voice prompt: speech as codes and as mel, and its x-vector. Each may be missing."""

    codes: Codes
    mel: Mel
    xvector: NDArray[np.float32] | None = None


class SystemText(str):
    """A text of the system in the place of one that the user has typed."""


class Modality(str, Enum):
    """Modality of a reply. A reply has exactly one."""

    SPEECH = "speech"
    TEXT = "text"


class ToolOutput(str):
    """The result of a tool call in the place of a text that the user has typed."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model has written: of a tool that it was offered, with arguments that the tool
    takes."""

    name: str
    arguments: str
    """A JSON object."""


FinishReason = Literal["stop", "length", "cancelled", "tool_call"]
"""Why a reply ended: "tool_call" with a call, whose result the next turn brings."""


@dataclass(frozen=True, slots=True)
class MelSpec:
    """The mel spectrogram between flow and vocoder. Two stages are compatible only if their specs are
    equal."""

    sample_rate: int
    n_mels: int
    n_fft: int
    hop: int
    win: int
    fmin: float
    fmax: float

    @property
    def frame_rate(self) -> float:
        """Mel frames per second."""
        return self.sample_rate / self.hop


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of a row, for both channels.

    The end of the reply is not sampled before row `min_new`, counted from 1; with 0 or 1 a reply may be
    empty.

    With a `seed`, each reply of a conversation gets a different derived seed, and repeating the conversation
    reproduces its samples; without one, every conversation has a random seed.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    min_new: int = 0
    max_new: int = 512
    seed: int | None = None

    def seeded(self) -> SamplingParams:
        """The same parameters with a fixed default seed, for reproducible runs."""
        return self if self.seed is not None else replace(self, seed=0)


class CancelScope:
    """Whether the result of some work, such as the reply to a commit, is still wanted.

    The thread that asks for the work creates the scope and alone cancels it, once and for good. Any thread
    may ask `is_cancelled`, without a lock. A value computed under a cancelled scope is stale: the producer
    stops, the consumer drops it, and no queue is purged. A scope is cancelled with its `parent`: every commit
    of a turn with the turn.
    """

    __slots__ = ("_is_cancelled", "_parent")

    def __init__(self, parent: CancelScope | None = None) -> None:
        self._is_cancelled = False
        self._parent = parent

    def cancel(self) -> None:
        """Cancel: the result is no longer needed."""
        self._is_cancelled = True

    @property
    def is_cancelled(self) -> bool:
        """Whether this scope or its parent was cancelled."""
        return self._is_cancelled or (self._parent is not None and self._parent.is_cancelled)


@dataclass(frozen=True, slots=True)
class TurnEndPrediction:
    """The language model's own answer to whether the user has finished: 1 - the probability of an empty
    reply. The first event of a reply, from its first row; only from a bundle with `detects_turn_end`."""

    turn_id: int
    probability: float


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of a reply and of what it was made from. A code and a text id of one position count as one of
    each."""

    input_text: int
    input_audio: int
    cached: int
    """So many of the input were prefilled before the commit."""
    output_text: int
    output_audio: int


@dataclass(frozen=True, slots=True)
class ReplyText:
    """A fragment of reply text: the reply itself, or the subtitle of speech (`is_subtitle`).

    In a spoken reply it counts as heard once more than `start_sample` samples were played.
    """

    turn_id: int
    text: str
    is_subtitle: bool = False
    start_sample: int = 0
    usage: TokenUsage | None = field(default=None, compare=False)
    """Tokens so far; None where they are not counted."""


@dataclass(frozen=True, slots=True)
class ReplyAudio:
    """Reply speech that is ready to play, in order and without gaps."""

    turn_id: int
    pcm: Pcm
    sample_rate: int
    chunk_index: int
    usage: TokenUsage | None = field(default=None, compare=False)
    """Tokens so far; None where they are not counted."""


@dataclass(frozen=True, slots=True)
class ReplyDone:
    """The last event of every reply."""

    turn_id: int
    modality: Modality
    finish_reason: FinishReason
    text: str
    codes: tuple[int, ...] = field(default=())
    audio_samples: int = 0
    usage: TokenUsage | None = None
    """None where it was not counted."""
    call: ToolCall | None = None
    """The call that the reply ends with."""


ReplyEvent = TurnEndPrediction | ReplyText | ReplyAudio | ReplyDone
