"""ReplyTokens: the tokens of a reply, and their truncation at a playback position.

In: generated tokens, each with the text it released, and a position (how much was played or shown). Out: the
reply as a complete turn of the chat layout, its text and its codes, all truncated at the same token. A code
counts as heard once its audio has started. Plain lists. Engine thread.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import islice

from engine_runtime.bundle.bundle import SpecialIds
from engine_runtime.lm.chat_template import Prompt
from engine_runtime.lm.generation import GeneratedToken, Mode, Token
from engine_runtime.types import Modality


@dataclass(frozen=True, slots=True)
class ReplyPosition:
    """Position in a reply: samples of speech that were played, or characters of text that were shown."""

    samples: int = 0
    characters: int = 0


@dataclass(slots=True)
class ReplyTokens:
    """The tokens of one reply, including the token that ended it.

    Attributes:
        forced: what the reply was made to begin with, in its text channel.
        codes: the speech codes among the tokens.
        text: the text reply, or the transcript of a spoken one.
        num_call_tokens: number of the last tokens that are a call.
        has_call: whether that call is complete. It is kept, however little of the speech was heard.
    """

    modality: Modality
    special: SpecialIds
    samples_per_code: int
    forced: tuple[Token, ...] = ()
    tokens: list[GeneratedToken] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    text: str = ""
    num_call_tokens: int = 0
    has_call: bool = False
    _codes_before: list[int] = field(default_factory=list)
    """Number of speech codes before each token."""
    _text_ends: list[int] = field(default_factory=list)
    """Number of characters of `text` up to and including each token."""
    _text_token: int = 0
    """Index of the latest token that added text."""

    def append(self, token: GeneratedToken) -> None:
        """Append the next token."""
        self.tokens.append(token)
        self._codes_before.append(len(self.codes))
        self._text_ends.append(len(self.text))
        if self.is_code(token):
            self.codes.append(token.token.audio)

    def add_text(self, text: str, *, is_late: bool = False) -> int:
        """Add text released by the last token or, if `is_late`, by the latest token that released text;
        returns the sample at which the audio of that token starts."""
        self._text_token = self._text_token if is_late else len(self.tokens) - 1
        self.text += text
        self._text_ends[self._text_token :] = [len(self.text)] * (len(self.tokens) - self._text_token)
        return self.samples_per_code * self._codes_before[self._text_token]

    def is_code(self, token: GeneratedToken) -> bool:
        """Whether the token is a speech code and not the end of speech."""
        return token.mode is Mode.AUDIO and token.token.audio < self.special.eosp

    def up_to(self, position: ReplyPosition) -> ReplyTokens:
        """The tokens that were heard (spoken reply) or shown (text reply) at this position."""
        count = self._codes_heard(position) if self.modality is Modality.SPEECH else self._shown(position)
        count = min(count, len(self.tokens) - self.num_call_tokens)
        left = ReplyTokens(self.modality, self.special, self.samples_per_code, self.forced)
        left.tokens = self.tokens[:count]
        left.codes = [token.token.audio for token in left.tokens if self.is_code(token)]
        left._codes_before, left._text_ends = self._codes_before[:count], self._text_ends[:count]
        left.text = self.text[: left._text_ends[-1]] if count else ""
        left._text_token = min(self._text_token, max(count - 1, 0))
        if self.has_call:
            left._append_call(self.tokens[-self.num_call_tokens :])
        return left

    def _append_call(self, call: list[GeneratedToken]) -> None:
        """Append a complete call, after the end of the speech before it."""
        if self.tokens and self.is_code(self.tokens[-1]):
            end = Token(self.special.modality_pad, self.special.eosp)
            self.append(GeneratedToken(end, Mode.AUDIO, len(self.tokens), end))
        for token in call:
            self.append(token)
        self.num_call_tokens, self.has_call = len(call), True

    def as_turn(self, prompt: Prompt) -> list[Token]:
        """The reply as a turn of the history: with its opening, the end of speech if it was truncated, and
        the end of the turn."""
        said = [token for token in self.tokens if not token.is_stop]
        is_call = bool(self.forced) or 0 < len(said) == self.num_call_tokens
        return [
            *prompt.open_reply(Modality.TEXT if is_call else self.modality),
            *self.forced,
            *(token.token for token in said),
            *(prompt.end_speech() if self._is_speaking(said) else ()),
            *prompt.end_turn(),
        ]

    def _codes_heard(self, position: ReplyPosition) -> int:
        """Number of tokens up to the last code whose audio had started."""
        started = -(-position.samples // self.samples_per_code)
        places = (index for index, token in enumerate(self.tokens) if self.is_code(token))
        return max((index + 1 for index in islice(places, started)), default=0)

    def _shown(self, position: ReplyPosition) -> int:
        """Number of tokens up to the one with the last character that was shown."""
        characters = min(position.characters, len(self.text))
        if not characters:
            return 0
        return bisect_left(self._text_ends, characters) + 1

    def _is_speaking(self, tokens: list[GeneratedToken]) -> bool:
        """Whether speech is open after these tokens."""
        if not tokens:
            return self.modality is Modality.SPEECH
        last = tokens[-1]
        return last.token.text == self.special.sosp or self.is_code(last)
