"""Prompt: from the turns of a conversation to tokens, and from text ids back to text.

In: roles, text, speech codes. Out: tokens of (text id, audio id) in the chat layout of the model:

    turn          <|im_start|>{role}\\n content <|im_end|>\\n
    text token      (id, audio_pad)
    speech        (sosp, audio_pad), (modality_pad, code) ..., (modality_pad, eosp)
    reply opens   <|im_start|>{assistant}\\n, and for speech (sosp, audio_pad)
    call          {begin}{"name": ..., "arguments": {...}}{end}, in a reply
    its result    a turn of its own, {begin}text{end}

Role and content are tokenized apart, as by MOSS-Speech's own processor. The system text selects the modality
of the reply, so there is one system turn for each. Text never becomes special ids, whatever it looks like;
the delimiters of a call do where they are added tokens. Any thread; no state but the tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from engine_runtime.bundle.bundle import PromptTexts, SpecialIds
from engine_runtime.bundle.tools import NO_TOOLS, ToolCallFormat, ToolUse
from engine_runtime.errors import BundleError
from engine_runtime.lm.generation import Token
from engine_runtime.types import Modality, ToolCall

REPLACEMENT = "\ufffd"
"""Replacement character: a tokenizer decodes an incomplete UTF-8 sequence to it."""
_TRIED = "".join(map(chr, range(128))) + "é 你好 😀"
_SYSTEM_ROLE = "system"
_KEPT_INSTRUCTIONS = 64
"""System turns that are kept as tokens, for as many conversations."""
PLACEHOLDERS = ("<|empty|>", "<|end_empty|>")
"""Placeholder tokens for positions without text. MOSS-Speech's own processor shows them as "." and ":", which
are not part of the reply; a tokenizer need not mark them as special, so they are recognized by name."""


class TextTokenizer:
    """Text to ids and back, by the bundle's tokenizer.json."""

    def __init__(
        self, file: Path, special: SpecialIds, text_vocab: int, delimiters: Iterable[str] = ()
    ) -> None:
        """`delimiters` are texts that add no text where they are added tokens. Raises BundleError if the file
        cannot be read or has more ids than the model."""
        self._file = file
        with _one_kind_of_error(file):
            self._tokenizer = _open_tokenizer(file)
        last = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        if last >= text_vocab:
            raise BundleError(
                "{file} has ids up to {last}, but the language model has a text vocabulary of {text_vocab}.",
                "Use the tokenizer and the weights of one model.",
                file=file,
                last=last,
                text_vocab=text_vocab,
            )
        ids = (special.endoftext, special.im_start, special.im_end, special.sosp, special.modality_pad)
        named = (special.empty, *map(self._tokenizer.token_to_id, PLACEHOLDERS))
        added: dict[int, AddedToken] = self._tokenizer.get_added_tokens_decoder()
        marked = (token_id for token_id, token in added.items() if token.special)
        self._silent = frozenset(token_id for token_id in (*ids, *named, *marked) if token_id is not None)
        self._added = {token.content: token_id for token_id, token in added.items()}
        self._silent |= {self._added[text] for text in delimiters if text in self._added}
        self._reserved = self._silent | added.keys()
        """Ids that plain text never contains."""
        # Text that looks like an added token stays text. The library skips only tokens marked as special, and
        # a tokenizer need not mark all of them (Qwen3's <think>, here the modality pad, is not marked).
        self._tokenizer.add_special_tokens([AddedToken(t.content, special=True) for t in added.values()])
        self._tokenizer.encode_special_tokens = True

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; the spelling of a special token is encoded as ordinary characters."""
        ids: list[int] = []
        while text:
            with _one_kind_of_error(self._file):
                found = self._tokenizer.encode(text, add_special_tokens=False)
            ends = (
                start + 1
                for token_id, (start, end) in zip(found.ids, found.offsets, strict=True)
                if token_id in self._reserved and end - start > 1
            )
            # A vocabulary may merge ordinary tokens into a special one: encode its first character
            # separately.
            end = next(ends, len(text))
            if end == len(text):
                return [*ids, *found.ids]
            ids += self.encode(text[:end])
            text = text[end:]
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; special ids and placeholders add no text."""
        said = [token_id for token_id in ids if token_id not in self._silent]
        with _one_kind_of_error(self._file):
            text: str = self._tokenizer.decode(said, skip_special_tokens=False)
        return text

    def added_id(self, text: str) -> int | None:
        """The id of an added token, None if the text is none."""
        return self._added.get(text)

    def is_silent(self, token_id: int) -> bool:
        """Whether the id is special or a placeholder, so that it adds no text."""
        return token_id in self._silent


@contextmanager
def _one_kind_of_error(file: Path) -> Iterator[None]:
    """Convert every error of the library to BundleError.

    NOTE: it raises bare Exception for an invalid file, and for unexpected input a Rust panic, which is a
    BaseException.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise BundleError(
            "{file} is not a valid tokenizer: {error}.",
            "Copy or download the bundle again.",
            file=file,
            error=str(error)[:200],
        ) from error


def _open_tokenizer(file: Path) -> Tokenizer:
    """Read the file and run it once: some defects appear only in use."""
    # Not from_file: the library accepts UTF-8 names only, whatever the file system encoding is.
    tokenizer: Tokenizer = Tokenizer.from_buffer(file.read_bytes())
    # No padding, no truncation.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.decode(tokenizer.encode(_TRIED, add_special_tokens=False).ids, skip_special_tokens=True)
    return tokenizer


class IncrementalText:
    """Incremental detokenizer: text of a growing list of ids; an incomplete character is held back."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._shown = 0
        """Ids whose text was returned; the decoding window starts one piece earlier, because spaces depend on
        it."""
        self._window = 0
        self.text = ""

    def push(self, token_id: int) -> str:
        """Add an id; returns the new text, "" if there is none yet."""
        if self._tokenizer.is_silent(token_id):
            return ""
        self._ids.append(token_id)
        before, after = self._decode_window()
        if after.endswith(REPLACEMENT) or len(after) <= len(before):
            return ""
        return self._show(after[len(before) :])

    def finish(self) -> str:
        """Return the text held back; bytes that do not form a character are dropped."""
        before, after = self._decode_window()
        return self._show(after[len(before) :].rstrip(REPLACEMENT))

    def _decode_window(self) -> tuple[str, str]:
        shown = self._tokenizer.decode(self._ids[self._window : self._shown])
        return shown, self._tokenizer.decode(self._ids[self._window :])

    def _show(self, text: str) -> str:
        self._window, self._shown = self._shown, len(self._ids)
        self.text += text
        return text


@dataclass(frozen=True, slots=True)
class BegunCall:
    """The beginning of a call that the model has to continue, and its text after the delimiter."""

    tokens: tuple[Token, ...]
    text: str


class Prompt:
    """Tokens of the chat layout."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        special: SpecialIds,
        texts: PromptTexts,
        tool_calls: ToolCallFormat | None = None,
    ) -> None:
        self._tokenizer, self._special, self._texts = tokenizer, special, texts
        self._tool_calls = tool_calls
        self._code_token = cache(partial(Token, special.modality_pad))
        self._end_turn = self._as_tokens([special.im_end, *tokenizer.encode("\n")])
        self._open_reply = self._open(texts.assistant_role)
        self._open_speech = [*self._open(texts.user_role), *self._as_tokens([special.sosp])]
        self._instructed = lru_cache(_KEPT_INSTRUCTIONS)(self._system_tokens)

    def text_tokens(self, text: str) -> list[Token]:
        """Tokens of plain text."""
        return self._as_tokens(self._tokenizer.encode(text))

    def code_tokens(self, codes: Iterable[int]) -> list[Token]:
        """Tokens of speech codes."""
        return [*map(self._code_token, map(int, codes))]

    def system(self, modality: Modality, instructions: str = "", tools: ToolUse = NO_TOOLS) -> list[Token]:
        """The system turn that asks for replies of this modality, offers tools, and says what the
        `instructions` say."""
        offer = self._tool_calls.announce(tools.offered) if self._tool_calls is not None else ""
        return list(self._instructed(modality, "\n".join(filter(None, (offer, instructions)))))

    def system_text(self, text: str) -> list[Token]:
        """Another system turn without its end."""
        return self._open(_SYSTEM_ROLE, text)

    def user_text(self, text: str) -> list[Token]:
        """A typed user turn without its end."""
        return self._open(self._texts.user_role, text)

    def open_user_speech(self) -> list[Token]:
        """Beginning of a spoken user turn; code tokens follow."""
        return list(self._open_speech)

    def end_speech(self) -> list[Token]:
        """The token after the last code."""
        return [Token(self._special.modality_pad, self._special.eosp)]

    def end_turn(self) -> list[Token]:
        """End of any turn."""
        return list(self._end_turn)

    def open_reply(self, modality: Modality) -> list[Token]:
        """Beginning of the reply; the model continues from here."""
        return [
            *self._open_reply,
            *(self._as_tokens([self._special.sosp]) if modality is Modality.SPEECH else ()),
        ]

    def text_turn(self, text: str) -> list[Token]:
        """A complete text reply."""
        return [*self.open_reply(Modality.TEXT), *self.text_tokens(text), *self._end_turn]

    def call_turn(self, call: ToolCall) -> list[Token]:
        """A complete reply that is a call, by a model that can write one."""
        assert self._tool_calls is not None
        begin, end = self._tool_calls.call_begin, self._tool_calls.call_end
        written = f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}'
        ids = [*self._delimiter(begin), *self._tokenizer.encode(written), *self._delimiter(end)]
        return [*self.open_reply(Modality.TEXT), *self._as_tokens(ids), *self._end_turn]

    def tool_output(self, text: str) -> list[Token]:
        """The result of a call, a turn without its end."""
        assert self._tool_calls is not None
        begin, end = self._tool_calls.result_begin, self._tool_calls.result_end
        ids = [*self._delimiter(begin), *self._tokenizer.encode(text), *self._delimiter(end)]
        return [*self._open(self._tool_calls.result_role), *self._as_tokens(ids)]

    def begin_call(self, tools: ToolUse) -> BegunCall:
        """The beginning of a reply that has to be a call: up to the arguments if only one tool is offered."""
        assert self._tool_calls is not None
        written = ""
        if len(tools.offered) == 1:
            # Without a space at the end: in most vocabularies it belongs to the token after it.
            written = f'{{"name": {json.dumps(tools.offered[0].name)}, "arguments":'
        ids = [*self._delimiter(self._tool_calls.call_begin), *self._tokenizer.encode(written)]
        return BegunCall(tuple(self._as_tokens(ids)), written)

    def _delimiter(self, text: str) -> list[int]:
        added = self._tokenizer.added_id(text)
        return self._tokenizer.encode(text) if added is None else [added]

    def _system_tokens(self, modality: Modality, instructions: str) -> list[Token]:
        text = self._texts.system_speech if modality is Modality.SPEECH else self._texts.system_text
        text = f"{text}\n{instructions}" if instructions else text
        return [*self._open(_SYSTEM_ROLE, text), *self._end_turn]

    def _open(self, role: str, content: str = "") -> list[Token]:
        encode = self._tokenizer.encode
        return self._as_tokens([self._special.im_start, *encode(f"{role}\n"), *encode(content)])

    def _as_tokens(self, ids: Iterable[int]) -> list[Token]:
        return [Token(token_id, self._special.audio_pad) for token_id in ids]
