"""Whether a resumed reply goes on at the sample where it was paused: the record against the reply as made.

In: the assistant's channel, the time of a decision to resume, the sound of the reply. Out: how many
milliseconds of the reply are missing in the record (above 0), or in it twice (below 0). Pure.
"""

from __future__ import annotations

import numpy as np

from app.audio.levels import rms
from app.audio.playback_ring import FADE_S
from app.duplex.room import RATE
from engine_runtime.types import Pcm

TOLERANCE_MS = 5.0
"""Of the edges of silence, which the resampling of the record smears."""
_SILENT = 1e-5
_PIECE = round(0.2 * RATE)
_FADE = round(1.5 * FADE_S * RATE)
_ALIKE = 0.8
_SOON = RATE // 2
"""The sound goes on within this many samples after the decision."""
_QUIET = 1e-3


def shift_ms(channel: Pcm, resumed_s: float, reply: Pcm) -> float | None:
    """See the module; what is faded out and in again counts as there twice. None where the sound on one side
    is too short, too quiet or not found in the reply."""
    gap = _silence(channel, round(resumed_s * RATE))
    if gap is None:
        return None
    before_end, after_start = gap[0] - _FADE, gap[1] + _FADE
    before = _place(reply, channel[max(before_end - _PIECE, 0) : before_end])
    after = _place(reply, channel[after_start : after_start + _PIECE])
    if before is None or after is None:
        return None
    # Both pieces and what lies between them, silence left out, against the same stretch of the reply.
    in_record = after_start - (before_end - _PIECE) - (gap[1] - gap[0])
    return float((after - before - in_record) * 1e3 / RATE)


def _silence(channel: Pcm, at: int) -> tuple[int, int] | None:
    """The run of silence that ends soon after `at`."""
    sounds = np.flatnonzero(np.abs(channel) > _SILENT)
    later = sounds[sounds >= at]
    if not len(later) or later[0] > at + _SOON:
        return None
    earlier = sounds[sounds < at]
    return (int(earlier[-1]) + 1, int(later[0])) if len(earlier) else None


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
