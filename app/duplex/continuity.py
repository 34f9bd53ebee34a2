"""Whether a resumed reply continues at the sample where it was paused: record against reply.

In: the assistant's channel, the times of the decisions to pause and to resume, the sound of the reply. Out:
how many milliseconds of the reply are missing in the record (above 0), or in it twice (below 0). Pure.
"""

from __future__ import annotations

import numpy as np

from app.audio.levels import rms
from app.audio.playback_ring import FADE_S
from app.duplex.room import RATE
from engine_runtime.types import Pcm

TOLERANCE_MS = 10.0
"""A decision takes effect with the next block of the device."""
_PIECE = round(0.4 * RATE)
_MARGIN = round((FADE_S + 2 * TOLERANCE_MS / 1e3) * RATE)
"""After the decision to resume: the block, and the fade."""
_ALIKE = 0.8
_QUIET = 1e-3


def shift_ms(
    channel: Pcm,
    paused_s: float,
    resumed_s: float,
    reply: Pcm,
    *,
    since_s: float = 0.0,
    until_s: float = np.inf,
) -> float | None:
    """None where a side is too short, too quiet or not found in the reply. The reply is
    played without another pause from `since_s` to `until_s`."""
    before_end = round(paused_s * RATE)
    after_start = round(resumed_s * RATE) + _MARGIN
    first = max(before_end - _PIECE, round(since_s * RATE))
    end = int(min(after_start + _PIECE, until_s * RATE))
    before = _place(reply, channel[first:before_end])
    after = _place(reply, channel[after_start:end])
    if before is None or after is None:
        return None
    # From the start of one piece to that of the other, without the pause.
    in_record = after_start - (before_end - _PIECE) - (resumed_s - paused_s) * RATE
    return float((after - before - in_record) * 1e3 / RATE)


def _place(reply: Pcm, piece: Pcm) -> int | None:
    """Where the piece is in the reply."""
    if len(piece) < _PIECE or len(reply) < _PIECE or rms(piece) < _QUIET:
        return None
    size = 1 << (len(reply) + _PIECE).bit_length()
    product = np.fft.rfft(reply, size) * np.conj(np.fft.rfft(piece, size))
    likeness = np.fft.irfft(product, size)[: len(reply) - _PIECE + 1]
    energy = np.concatenate([[0.0], np.cumsum(reply.astype(np.float64) ** 2)])
    levels = np.sqrt(np.maximum((energy[_PIECE:] - energy[:-_PIECE]) / _PIECE, _QUIET**2))
    likeness = likeness / (levels * rms(piece) * _PIECE)
    place = int(np.argmax(likeness))
    return place if likeness[place] >= _ALIKE else None
