"""Context policy: selects the turns of a conversation that fit into the model's context.

Policy: the system turn and the current turn always stay, and tokens are reserved for the reply. When the rest
does not fit, complete exchanges (user turn and reply) are dropped, oldest first, until the kept history fills
at most a part of its budget, half of it by default. Dropping so much at once keeps the prefix stable for many
turns, so that the remaining history is prefilled again once and not at every turn. ContextLengthError if the
current turn alone does not fit, or where nothing may be dropped. Pure functions; no tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine_runtime.bundle.tools import NO_TOOLS, ToolUse
from engine_runtime.errors import ContextLengthError
from engine_runtime.types import Modality, SamplingParams, ToolOutput

if TYPE_CHECKING:  # it imports torch
    from engine_runtime.lm.chat_template import Prompt

RETENTION = 0.5
"""Part of the budget that the history fills at most once exchanges are dropped."""


def reply_reserve(max_new: int, limit: int) -> int:
    """Tokens reserved for the reply: its maximum length, but at most a quarter of the context."""
    return min(max_new, limit // 4)


def num_dropped(
    system_tokens: int,
    exchange_tokens: Sequence[int],
    current_tokens: int,
    reserve: int,
    limit: int,
    retention: float | None = RETENTION,
) -> int:
    """Number of the oldest exchanges to drop.

    Args:
        system_tokens: tokens of the system turn.
        exchange_tokens: tokens of each earlier exchange, oldest first.
        current_tokens: tokens of the user's turn so far and of the reply's opening.
        reserve: tokens reserved for the reply.
        limit: tokens that the context and the KV pool can hold.
        retention: part of the budget that is kept; None if nothing may be dropped.

    Raises ContextLengthError if the current turn does not fit without any history, or beside all of it where
    nothing may be dropped.
    """
    room = limit - system_tokens - current_tokens - reserve
    if room < 0:
        raise ContextLengthError(
            "This turn has {tokens} tokens, but only {most} fit into the model's context of "
            "{limit} beside the reply.",
            "Send a shorter message; the conversation so far is kept.",
            tokens=current_tokens,
            most=max(0, current_tokens + room),
            limit=limit,
        )
    kept = sum(exchange_tokens)
    if kept <= room:
        return 0
    if retention is None:
        raise ContextLengthError(
            "The conversation has {tokens} tokens, and {most} of them fit into the model's context "
            "of {limit} beside this turn and its reply.",
            "Delete some of it, or allow its oldest part to be left out.",
            tokens=kept,
            most=room,
            limit=limit,
        )
    for dropped, tokens in enumerate(exchange_tokens, start=1):
        kept -= tokens
        if kept <= room * retention:
            return dropped
    return len(exchange_tokens)


class TurnRoom:
    """How much of the context a turn of the user may take, beside the system turn and the reply. Any
    thread."""

    def __init__(
        self,
        prompt: Prompt,
        sampling: dict[Modality, SamplingParams],
        limit: int,
        samples_per_code: float,
        tools: ToolUse = NO_TOOLS,
    ) -> None:
        """`sampling` is that of both kinds of reply, `limit` as in `num_dropped`; `samples_per_code` counts
        those of the input; `tools` are all that may be offered."""
        self._prompt, self._samples_per_code = prompt, samples_per_code
        reply = max(
            len(prompt.system(modality, tools=tools))
            + len(prompt.open_reply(modality))
            + reply_reserve(params.max_new, limit)
            for modality, params in sampling.items()
        )
        # The end of speech is reserved in every turn that is open, also where a text is typed.
        self.most = max(limit - reply - len(prompt.end_speech()), 0)
        """Tokens."""
        self._around_speech = len([*prompt.open_user_speech(), *prompt.end_turn()])

    def tokens(self, said: str | int) -> int:
        """Tokens of a typed text, of the result of a tool, or of speech of so many samples."""
        if isinstance(said, str):
            prompt = self._prompt
            text = prompt.tool_output(said) if isinstance(said, ToolOutput) else prompt.user_text(said)
            return len([*text, *prompt.end_turn()])
        return self._around_speech + math.ceil(said / self._samples_per_code)

    def samples(self, tokens: int) -> int:
        """Length of the longest speech that takes so many tokens."""
        return max(int((tokens - self._around_speech) * self._samples_per_code), 0)
