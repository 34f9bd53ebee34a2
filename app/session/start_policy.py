"""When the playback of a reply starts: as soon as what is in hand covers the time until more comes.

In: when the pieces of the last reply came and how long each sounds. Out: how long to wait after the first
piece of the next one. Pure functions of times in ms. Dialog thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SLOWER = 1.25
"""The next reply is taken to be made this much more slowly than the last one."""
MARGIN_MS = 60.0
"""What should be left in hand when a piece comes: the beat of the dialog loop and a block of the device."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A piece of a reply: when it came and how long it sounds."""

    at_ms: float
    audio_ms: float


def start_delay_ms(arrivals: Sequence[Arrival]) -> float | None:
    """How long after its first piece a reply that comes like this one is to start, so as never to run dry.

    Piece j comes at t_j; what came before it sounds A_j, so the start must not be before t_j - A_j. None with
    fewer than two pieces, which say nothing of the time between them.
    """
    if len(arrivals) < 2:
        return None
    first_ms, sounded_ms, delay_ms = arrivals[0].at_ms, 0.0, 0.0
    for piece in arrivals:
        if piece is not arrivals[0]:
            delay_ms = max(delay_ms, SLOWER * (piece.at_ms - first_ms) + MARGIN_MS - sounded_ms)
        sounded_ms += piece.audio_ms
    return delay_ms


def may_start(
    level_ms: float, waited_ms: float, delay_ms: float | None, least_ms: float, most_ms: float
) -> bool:
    """Whether to start with `level_ms` in hand, `waited_ms` after the first piece.

    delay_ms: what the last reply taught, None if nothing; then `least_ms` have to be in hand. `most_ms` in
    hand is enough in any case.
    """
    if level_ms <= 0:
        return False
    if delay_ms is None:
        return level_ms >= least_ms
    return waited_ms >= delay_ms or level_ms >= most_ms
