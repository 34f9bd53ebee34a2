"""A WAV reader for tests, written from the format alone, slow and plain.

In: the bytes of a file. Out: rate and mono samples as exact as Python's floats, or None where there is no
audio that has to be read.
"""

from __future__ import annotations

import math
import struct

Audio = tuple[int, list[float]]


def read(content: bytes) -> Audio | None:
    """Rate and samples, the mean of all channels."""
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        return None
    layout, rest = b"", content[12:]
    for _ in range(1_000):
        name, size, body = rest[:4], int.from_bytes(rest[4:8], "little"), rest[8:]
        if len(rest) < 8:
            return None
        if name == b"data":
            return _samples(layout, body[:size]) if len(body) >= size else None
        if name == b"fmt ":
            layout = body[: min(size, 64)]
        rest = body[size + size % 2 :]
    return None


def _samples(layout: bytes, audio: bytes) -> Audio | None:
    if len(layout) < 16:
        return None
    kind, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", layout)
    if kind == 0xFFFE and len(layout) >= 26:
        kind = int.from_bytes(layout[24:26], "little")
    if (kind, bits) not in ((1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)):
        return None
    if not 1 <= channels <= 64 or not 8_000 <= rate <= 96_000:
        return None
    width = bits // 8
    values = [_value(audio[place : place + width], kind) for place in range(0, len(audio) - width + 1, width)]
    frames = [values[place : place + channels] for place in range(0, len(values), channels)]
    means = [math.fsum(frame) / channels for frame in frames if len(frame) == channels]
    return (rate, means) if means else None


def _value(stored: bytes, kind: int) -> float:
    if kind == 3:
        (value,) = struct.unpack("<f" if len(stored) == 4 else "<d", stored)
        return 0.0 if math.isnan(value) else max(-1.0, min(1.0, value))
    if len(stored) == 1:  # the only unsigned format
        return (stored[0] - 128) / 128
    return int.from_bytes(stored, "little", signed=True) / float(1 << (8 * len(stored) - 1))
