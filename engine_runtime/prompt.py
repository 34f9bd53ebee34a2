"""Prompt: from the turns of a conversation to rows, and from text ids back to text.

In: roles, text, speech codes. Out: rows of (text id, audio id) in the chat layout of the model:

    turn          <|im_start|>{role}\\n content <|im_end|>\\n
    text row      (id, audio_pad)
    speech        (sosp, audio_pad), (modality_pad, code) ..., (modality_pad, eosp)
    reply opens   <|im_start|>{assistant}\\n, and for speech (sosp, audio_pad)

The system text selects the modality of the reply, so there is one system turn for each. Words of a user never
become special ids. Any thread; no state but the tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer

from engine_runtime.bundle import PromptTexts, SpecialIds
from engine_runtime.errors import BundleError
from engine_runtime.lm.generation import Row
from engine_runtime.types import Modality

REPLACEMENT = "\ufffd"
"""What a tokenizer gives for bytes that are no whole character yet."""
PLACEHOLDERS = ("<|empty|>", "<|end_empty|>")
"""Tokens that stand where the model has no word to write. MOSS-Speech's own processor shows them as "." and
":", which nobody said; a tokenizer need not mark them as special, so they are known by their names."""


class TextTokenizer:
    """Text to ids and back, by the bundle's tokenizer.json."""

    def __init__(self, file: Path, special: SpecialIds, text_vocab: int) -> None:
        """Raises BundleError if the file can not be read or has more ids than the model."""
        try:
            self._tokenizer: Tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception for whatever is wrong with the file
            raise BundleError(
                f"{file} is no tokenizer that can be read: {error}. Copy or download the bundle again."
            ) from error
        if self._tokenizer.get_vocab_size() > text_vocab:
            raise BundleError(
                f"{file} has {self._tokenizer.get_vocab_size()} ids, and the language model takes "
                f"{text_vocab}. Use the tokenizer and the weights of one model."
            )
        # Text that looks like a special token stays text.
        self._tokenizer.encode_special_tokens = True
        ids = (special.endoftext, special.im_start, special.im_end, special.sosp, special.modality_pad)
        named = (special.empty, *map(self._tokenizer.token_to_id, PLACEHOLDERS))
        self._silent = frozenset(ids) | {token_id for token_id in named if token_id is not None}

    def encode(self, text: str) -> list[int]:
        """Ids of plain text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; special ids and placeholders say nothing."""
        said = [token_id for token_id in ids if token_id not in self._silent]
        text: str = self._tokenizer.decode(said, skip_special_tokens=True)
        return text

    def is_silent(self, token_id: int) -> bool:
        """Whether the id is special or a placeholder, so that it adds no text."""
        return token_id in self._silent


class IncrementalText:
    """Text of a growing list of ids, piece by piece; a character whose bytes are not complete is held
    back."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._shown = 0
        """Ids whose text is out; the window is decoded from the piece before, since spaces depend on it."""
        self._window = 0
        self.text = ""

    def push(self, token_id: int) -> str:
        """Add an id; returns the text that is new, "" if there is none yet."""
        if self._tokenizer.is_silent(token_id):
            return ""
        self._ids.append(token_id)
        before, after = self._decode_window()
        if after.endswith(REPLACEMENT) or len(after) <= len(before):
            return ""
        return self._show(after[len(before) :])

    def finish(self) -> str:
        """Give what was held back; bytes that never became a character are left out."""
        before, after = self._decode_window()
        return self._show(after[len(before) :].rstrip(REPLACEMENT))

    def _decode_window(self) -> tuple[str, str]:
        shown = self._tokenizer.decode(self._ids[self._window : self._shown])
        return shown, self._tokenizer.decode(self._ids[self._window :])

    def _show(self, text: str) -> str:
        self._window, self._shown = self._shown, len(self._ids)
        self.text += text
        return text


class Prompt:
    """Rows of the chat layout."""

    def __init__(self, tokenizer: TextTokenizer, special: SpecialIds, texts: PromptTexts) -> None:
        self._tokenizer, self._special, self._texts = tokenizer, special, texts
        self._end_turn = self._as_rows([special.im_end, *tokenizer.encode("\n")])
        self._open_reply = self._open(texts.assistant_role)
        system_texts = {Modality.SPEECH: texts.system_speech, Modality.TEXT: texts.system_text}
        self._system = {
            modality: [*self._open("system", text), *self._end_turn]
            for modality, text in system_texts.items()
        }

    def text_rows(self, text: str) -> list[Row]:
        """Rows of plain text."""
        return self._as_rows(self._tokenizer.encode(text))

    def code_rows(self, codes: Iterable[int]) -> list[Row]:
        """Rows of speech codes."""
        return [Row(self._special.modality_pad, int(code)) for code in codes]

    def system(self, modality: Modality) -> list[Row]:
        """The system turn that asks for replies of this modality."""
        return list(self._system[modality])

    def user_text(self, text: str) -> list[Row]:
        """A typed user turn without its end."""
        return self._open(self._texts.user_role, text)

    def open_user_speech(self) -> list[Row]:
        """Beginning of a spoken user turn; code rows follow."""
        return [*self._open(self._texts.user_role), *self._as_rows([self._special.sosp])]

    def end_speech(self) -> list[Row]:
        """The row after the last code."""
        return [Row(self._special.modality_pad, self._special.eosp)]

    def end_turn(self) -> list[Row]:
        """End of any turn."""
        return list(self._end_turn)

    def open_reply(self, modality: Modality) -> list[Row]:
        """Beginning of the reply; the model goes on from here."""
        return [
            *self._open_reply,
            *(self._as_rows([self._special.sosp]) if modality is Modality.SPEECH else ()),
        ]

    def _open(self, role: str, content: str = "") -> list[Row]:
        return self._as_rows([self._special.im_start, *self._tokenizer.encode(f"{role}\n{content}")])

    def _as_rows(self, ids: Iterable[int]) -> list[Row]:
        return [Row(token_id, self._special.audio_pad) for token_id in ids]
