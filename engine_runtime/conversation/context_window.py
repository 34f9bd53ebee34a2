"""Context policy: selects the turns of a conversation that fit into the model's context.

Policy: the system turn and the current turn always stay, and rows are reserved for the reply. When the rest
does not fit, complete exchanges (user turn and reply) are dropped, oldest first, until the kept history fills
at most half of its budget. Dropping to half at once keeps the prefix stable for many turns, so that the
remaining history is prefilled again once and not at every turn. ContextLengthError if the current turn alone
does not fit. Pure functions; no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine_runtime.errors import ContextLengthError


def reply_reserve(max_new: int, limit: int) -> int:
    """Rows reserved for the reply: its maximum length, but at most a quarter of the context."""
    return min(max_new, limit // 4)


def num_dropped(
    system_rows: int, exchange_rows: Sequence[int], current_rows: int, reserve: int, limit: int
) -> int:
    """Number of the oldest exchanges to drop.

    Args:
        system_rows: rows of the system turn.
        exchange_rows: rows of each earlier exchange, oldest first.
        current_rows: rows of the user's turn so far and of the reply's opening.
        reserve: rows reserved for the reply.
        limit: rows that the context and the KV pool can hold.

    Raises ContextLengthError if the current turn does not fit without any history.
    """
    room = limit - system_rows - current_rows - reserve
    if room < 0:
        raise ContextLengthError(
            "This turn has {rows} rows, but at most {most} fit into the model's context "
            "of {limit} beside the reply.",
            "Send a shorter message; the conversation so far is kept.",
            rows=current_rows,
            most=max(0, current_rows + room),
            limit=limit,
        )
    kept = sum(exchange_rows)
    if kept <= room:
        return 0
    for dropped, rows in enumerate(exchange_rows, start=1):
        kept -= rows
        if kept <= room // 2:
            return dropped
    return len(exchange_rows)
