"""Questions and exchanges, of which a conversation consists, in tokens of the chat layout. Frozen values."""

from __future__ import annotations

from dataclasses import dataclass

from engine_runtime.lm.generation import Token


@dataclass(frozen=True, slots=True)
class Question:
    """A complete user turn, to be asked again; fields as those of an Exchange."""

    user: tuple[Token, ...]
    speech_maximum: float | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """A user turn and its reply, complete turns of the chat layout. `text` is the text reply, or the
    transcript of a spoken one if the model writes it. `speech_maximum` is that of the log10 mel power of a
    spoken turn."""

    user: tuple[Token, ...]
    reply: tuple[Token, ...]
    text: str = ""
    speech_maximum: float | None = None
    turn_id: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens of both turns."""
        return len(self.user) + len(self.reply)
