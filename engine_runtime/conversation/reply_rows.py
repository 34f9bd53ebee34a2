"""ReplyRows: the rows of a reply, and their truncation at a playback position.

In: generated rows, each with the text it released, and a position (how much was played or shown). Out: the
reply as a complete turn of the chat layout, its text and its codes, all truncated at the same row. A code
counts as heard once its audio has started. Plain lists. Engine thread.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import islice

from engine_runtime.bundle.bundle import SpecialIds
from engine_runtime.lm.chat_template import Prompt
from engine_runtime.lm.generation import GeneratedRow, Mode, Row
from engine_runtime.types import Modality


@dataclass(frozen=True, slots=True)
class ReplyPosition:
    """Position in a reply: samples of speech that were played, or characters of text that were shown."""

    samples: int = 0
    characters: int = 0


@dataclass(slots=True)
class ReplyRows:
    """The rows of one reply, including the row that ended it.

    Attributes:
        codes: the speech codes among the rows.
        text: the text reply, or the transcript of a spoken one.
    """

    modality: Modality
    special: SpecialIds
    samples_per_code: int
    rows: list[GeneratedRow] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    text: str = ""
    _codes_before: list[int] = field(default_factory=list)
    """Number of speech codes before each row."""
    _text_ends: list[int] = field(default_factory=list)
    """Number of characters of `text` up to and including each row."""
    _text_row: int = 0
    """Index of the latest row that added text."""

    def append(self, row: GeneratedRow) -> None:
        """Append the next row."""
        self.rows.append(row)
        self._codes_before.append(len(self.codes))
        self._text_ends.append(len(self.text))
        if self.is_code(row):
            self.codes.append(row.row.audio)

    def add_text(self, text: str, *, is_late: bool = False) -> int:
        """Add text released by the last row or, if `is_late`, by the latest row that released text; returns
        the sample at which the audio of that row starts."""
        self._text_row = self._text_row if is_late else len(self.rows) - 1
        self.text += text
        self._text_ends[self._text_row :] = [len(self.text)] * (len(self.rows) - self._text_row)
        return self.samples_per_code * self._codes_before[self._text_row]

    def is_code(self, row: GeneratedRow) -> bool:
        """Whether the row is a speech code and not the end of speech."""
        return row.mode is Mode.AUDIO and row.row.audio < self.special.eosp

    def up_to(self, position: ReplyPosition) -> ReplyRows:
        """The rows that were heard (spoken reply) or shown (text reply) at this position."""
        count = self._codes_heard(position) if self.modality is Modality.SPEECH else self._shown(position)
        left = ReplyRows(self.modality, self.special, self.samples_per_code)
        left.rows = self.rows[:count]
        left.codes = [row.row.audio for row in left.rows if self.is_code(row)]
        left._codes_before, left._text_ends = self._codes_before[:count], self._text_ends[:count]
        left.text = self.text[: left._text_ends[-1]] if count else ""
        left._text_row = min(self._text_row, max(count - 1, 0))
        return left

    def as_turn(self, prompt: Prompt) -> list[Row]:
        """The reply as a turn of the history: with its opening, the end of speech if it was truncated, and
        the end of the turn."""
        said = [row for row in self.rows if not row.is_stop]
        return [
            *prompt.open_reply(self.modality),
            *(row.row for row in said),
            *(prompt.end_speech() if self._is_speaking(said) else ()),
            *prompt.end_turn(),
        ]

    def _codes_heard(self, position: ReplyPosition) -> int:
        """Number of rows up to the last code whose audio had started."""
        started = -(-position.samples // self.samples_per_code)
        places = (index for index, row in enumerate(self.rows) if self.is_code(row))
        return max((index + 1 for index in islice(places, started)), default=0)

    def _shown(self, position: ReplyPosition) -> int:
        """Number of rows up to the one with the last character that was shown."""
        characters = min(position.characters, len(self.text))
        if not characters:
            return 0
        return bisect_left(self._text_ends, characters) + 1

    def _is_speaking(self, rows: list[GeneratedRow]) -> bool:
        """Whether speech is open after these rows."""
        if not rows:
            return self.modality is Modality.SPEECH
        last = rows[-1]
        return last.row.text == self.special.sosp or self.is_code(last)
