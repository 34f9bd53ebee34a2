"""What a session knows of the turn in progress, or of the repetition of an earlier reply. Dialog thread."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.session.messages import SessionState
from engine_runtime.types import Modality, ReplyText


@dataclass(slots=True)
class TurnInProgress:
    """From the first speech until the reply was played."""

    turn_id: int
    modality: Modality
    is_repetition: bool = False
    commit_id: int = 0
    """0 while the user speaks."""
    committed_ns: int = 0
    """When, by the session's clock."""
    user_codes: int = 0
    last_speech_ns: int | None = None
    """When the user spoke last, by the session's clock; None for a typed question."""
    last_speech_wall_ns: int = 0
    """The same by the clock of the timing bus."""
    is_answered: bool = False
    """The engine has made all of the reply."""
    had_playback: bool = False
    is_heard: bool = False
    """The first sample was handed to the loudspeaker."""
    pieces: list[ReplyText] = field(default_factory=list)
    """Text of the reply, as it came."""
    samples_heard: int = 0
    """What was heard of the reply before it was started over."""

    @property
    def text(self) -> str:
        """Text of the reply so far."""
        return "".join(piece.text for piece in self.pieces)

    def heard_text(self, samples_played: int) -> str:
        """Text of what was heard of a spoken reply, or shown of a text reply."""
        if self.modality is Modality.TEXT:
            return self.text
        return "".join(piece.text for piece in self.pieces if piece.start_sample < samples_played)

    @property
    def state(self) -> SessionState:
        """What the session does with this turn."""
        if not self.commit_id and not self.is_repetition:
            return SessionState.HEARING
        return SessionState.SPEAKING if self.is_heard else SessionState.THINKING

    def take_back(self) -> None:
        """The user continues: there was no commit and no reply."""
        self.commit_id = 0
        self.is_answered = False
        self.had_playback = False
        self.pieces.clear()
        self.samples_heard = 0
