"""The transcript: questions and answers in order, with the reply audio for playing it again.

In: events of turns. Out: the turns so far. Dialog thread; the engine has its own history (tokens and KV
blocks).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from engine_runtime.types import FinishReason, Modality, Pcm

_KEPT_AUDIO_S = 120.0
"""Reply audio kept in total, 12 MB at 24 kHz; beyond it the oldest replies can no longer be replayed."""


@dataclass(slots=True)
class SpokenText:
    """The text of a reply in parts, each with the sample of its speech at which it begins."""

    parts: list[tuple[int, str]] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.parts)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(text for _, text in self.parts)

    def add(self, start_sample: int, text: str) -> None:
        """The next part."""
        self.parts.append((start_sample, text))

    def up_to(self, samples: int) -> SpokenText:
        """The parts that had begun when this many samples were heard."""
        return SpokenText([(start, text) for start, text in self.parts if start < samples])


@dataclass(slots=True)
class TranscriptTurn:
    """One question and its reply, as far as it got."""

    turn_id: int
    question: str = ""
    """The typed question, "" if it was spoken."""
    user_s: float = 0.0
    """Length of a spoken question."""
    modality: Modality = Modality.SPEECH
    text: str = ""
    """Text of the reply or subtitle of a spoken one; if the reply was cut, the part that was heard."""
    sample_rate: int = 0
    finish_reason: FinishReason | None = None
    """None while the reply is being generated."""
    chunks: list[Pcm] = field(default_factory=list)

    @property
    def reply_s(self) -> float:
        """Length of the reply audio that is kept."""
        return sum(map(len, self.chunks)) / self.sample_rate if self.chunks else 0.0

    @property
    def pcm(self) -> Pcm:
        """The reply audio that is kept."""
        return np.concatenate(self.chunks) if self.chunks else np.zeros(0, dtype=np.float32)


class ConversationRecord:
    """All turns of one conversation."""

    def __init__(self, kept_audio_s: float = _KEPT_AUDIO_S) -> None:
        self._kept_audio_s = kept_audio_s
        self._turns: dict[int, TranscriptTurn] = {}

    @property
    def turns(self) -> tuple[TranscriptTurn, ...]:
        """Oldest first."""
        return tuple(self._turns.values())

    def open(self, turn_id: int, modality: Modality, question: str = "") -> TranscriptTurn:
        """Begin a turn."""
        turn = self._turns[turn_id] = TranscriptTurn(turn_id, question, modality=modality)
        return turn

    def get(self, turn_id: int) -> TranscriptTurn | None:
        """The turn, if it is known."""
        return self._turns.get(turn_id)

    def drop(self, turn_id: int) -> None:
        """Remove the turn, as if it had never existed."""
        self._turns.pop(turn_id, None)

    def add_audio(self, turn_id: int, pcm: Pcm, sample_rate: int) -> None:
        """Add audio to the spoken reply."""
        turn = self._turns.get(turn_id)
        if turn is not None:
            turn.sample_rate = sample_rate
            turn.chunks.append(pcm)

    def take_back_reply(self, turn_id: int) -> None:
        """Discard the reply so far: the user continues."""
        turn = self._turns.get(turn_id)
        if turn is not None:
            turn.text = ""
            turn.chunks.clear()
            turn.finish_reason = None

    def finish(self, turn_id: int, text: str, finish_reason: FinishReason) -> None:
        """Complete the reply."""
        turn = self._turns.get(turn_id)
        if turn is not None:
            turn.text = text
            turn.finish_reason = finish_reason
            # A copy: chunks may be views of larger buffers of the vocoder.
            turn.chunks = [turn.pcm] if turn.chunks else []
        self._forget_old_audio()

    def cut(self, turn_id: int, heard_text: str, heard_samples: int) -> None:
        """Stop the reply: keep the part that was heard."""
        turn = self._turns.get(turn_id)
        if turn is not None:
            turn.chunks = [turn.pcm[:heard_samples]] if turn.chunks and heard_samples else []
        self.finish(turn_id, heard_text, "cancelled")

    def clear(self) -> None:
        """Begin a new conversation."""
        self._turns.clear()

    def _forget_old_audio(self) -> None:
        kept_s = sum(turn.reply_s for turn in self._turns.values())
        for turn in self._turns.values():
            if kept_s <= self._kept_audio_s:
                return
            kept_s -= turn.reply_s
            turn.chunks.clear()
