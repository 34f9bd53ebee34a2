"""Calls of tools in the text channel of a reply: found while they are written, read once they are complete.

In: the text ids of a reply with the text that each released. Out: the text without the call; the number of
tokens that belong to the call, and at its end a `ToolCall`. Nothing of a call is shown or spoken. What the
user types or says is never looked at. Plain lists. Engine thread.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from engine_runtime.bundle.tools import ToolCallFormat, ToolUse
from engine_runtime.errors import ToolCallError
from engine_runtime.lm.chat_template import TextTokenizer
from engine_runtime.models.limits import shown
from engine_runtime.types import ToolCall

_LONGEST_CALL = 8_192
"""Characters."""


@dataclass(slots=True)
class _Delimiter:
    """The beginning or the end of a call: a token of its own, or a text."""

    text: str
    token_id: int | None

    def split(self, token_id: int, text: str) -> tuple[str, str] | None:
        """The text before and after it; None if it is not there."""
        if self.token_id is not None:
            return (text, "") if token_id == self.token_id else None
        before, found, after = text.partition(self.text)
        return (before, after) if found else None

    def begun(self, text: str) -> int:
        """Length of the end of a text with which the delimiter may begin."""
        if self.token_id is not None:
            return 0
        lengths = range(min(len(self.text) - 1, len(text)), 0, -1)
        return next((length for length in lengths if text.endswith(self.text[:length])), 0)


class CallScanner:
    """Divides the text of one reply into what is shown and at most one call, which ends the reply."""

    def __init__(self, tokenizer: TextTokenizer, written: ToolCallFormat, forced: str | None) -> None:
        """`forced` is the beginning of the call that the reply was made to begin with, after its delimiter;
        None if the model may choose."""
        self._begin = _Delimiter(written.call_begin, tokenizer.added_id(written.call_begin))
        self._end = _Delimiter(written.call_end, tokenizer.added_id(written.call_end))
        self._written = forced
        """Text of the call so far; None before it begins."""
        self._held = ""
        """Text that is not shown yet because a call may begin with it."""
        self.num_tokens = 0
        """Number of the latest tokens that belong to the call, or may."""
        self.is_complete = False
        """Whether the end of the call was written."""

    @property
    def has_begun(self) -> bool:
        """Whether the reply has a call, complete or not."""
        return self._written is not None

    def push(self, token_id: int, text: str) -> str:
        """The next token and the text that it released; returns the text to be shown."""
        self.num_tokens += 1
        if self._written is None:
            text, self._held = self._held + text, ""
            parts = self._begin.split(token_id, text)
            if parts is None:
                end = len(text) - self._begin.begun(text)
                self._held = text[end:]
                if not self._held:
                    self.num_tokens = 0
                return text[:end]
            said, text = parts
            self._written = ""
        else:
            said = ""
        whole = self._written + text
        parts = self._end.split(token_id, whole)
        self.is_complete = parts is not None
        self._written = whole if parts is None else parts[0]
        if len(self._written) > _LONGEST_CALL:
            raise ToolCallError(
                "The model wrote a call of more than {most} characters.", "Ask again.", most=_LONGEST_CALL
            )
        return said

    def finish(self, text: str) -> str:
        """The reply is over, with this text at its end; returns what is still to be shown."""
        return "" if self.has_begun else self._held + text

    def result(self, tools: ToolUse) -> ToolCall:
        """The call, once the reply is over. ToolCallError if it cannot be run."""
        written = self._written or ""
        try:
            call = json.loads(written)
            # Not every number and text that Python reads from JSON can be sent on.
            json.dumps(call, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            call = None
        if not isinstance(call, dict):
            raise ToolCallError(
                "The model wrote a call that is no JSON object: {written}.",
                "Ask again.",
                written=shown(written),
            )
        tool = tools.named(call.get("name"))
        if tool is None:
            raise ToolCallError(
                "The model called {tool}, which it was not offered.",
                "Ask again.",
                tool=shown(call.get("name")),
            )
        arguments = call.get("arguments", {})
        tool.check(arguments)
        return ToolCall(tool.name, json.dumps(arguments, ensure_ascii=False))
