"""Context policy: selects the turns of a conversation that fit into the model's context.

Policy: the system turn and the current turn always stay, and tokens are reserved for the reply. When the rest
does not fit, complete exchanges (user turn and reply) are dropped, oldest first, until the kept history fills
at most half of its budget. Dropping to half at once keeps the prefix stable for many turns, so that the
remaining history is prefilled again once and not at every turn. ContextLengthError if the current turn alone
does not fit. Pure functions; no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine_runtime.errors import ContextLengthError


def reply_reserve(max_new: int, limit: int) -> int:
    """Tokens reserved for the reply: its maximum length, but at most a quarter of the context."""
    return min(max_new, limit // 4)


def num_dropped(
    system_tokens: int, exchange_tokens: Sequence[int], current_tokens: int, reserve: int, limit: int
) -> int:
    """Number of the oldest exchanges to drop.

    Args:
        system_tokens: tokens of the system turn.
        exchange_tokens: tokens of each earlier exchange, oldest first.
        current_tokens: tokens of the user's turn so far and of the reply's opening.
        reserve: tokens reserved for the reply.
        limit: tokens that the context and the KV pool can hold.

    Raises ContextLengthError if the current turn does not fit without any history.
    """
    room = limit - system_tokens - current_tokens - reserve
    if room < 0:
        raise ContextLengthError(
            "This turn has {tokens} tokens, but at most {most} fit into the model's context "
            "of {limit} beside the reply.",
            "Send a shorter message; the conversation so far is kept.",
            tokens=current_tokens,
            most=max(0, current_tokens + room),
            limit=limit,
        )
    kept = sum(exchange_tokens)
    if kept <= room:
        return 0
    for dropped, tokens in enumerate(exchange_tokens, start=1):
        kept -= tokens
        if kept <= room // 2:
            return dropped
    return len(exchange_tokens)
