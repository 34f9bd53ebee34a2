"""Segments of speech: of the user, as annotated, and of the assistant, found by energy in its channel.

In: PCM, annotations. Out: segments in seconds. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, get_args

import numpy as np

from engine_runtime.types import Pcm

SegmentKind = Literal["turn", "interruption", "backchannel", "tic", "not_directed"]
KINDS: tuple[SegmentKind, ...] = get_args(SegmentKind)
FRAME_S = 0.01
SOUNDING_DBFS = -50.0
"""A frame of the assistant's channel above this level is sound."""
MODEL_GAP_S = 0.5
USER_GAP_S = 0.6
"""Full-Duplex-Bench 1.5: shorter gaps do not end a segment."""
_CUT_S = 0.05
"""A reply sounds this long after it was cut: the block of the device, and the fade."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of speech."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class UserSegment:
    """What a user did, pauses included. `pauses` are (start, end), in order; `text` is "" where nothing is
    said, or it is not known."""

    kind: SegmentKind
    start_s: float
    end_s: float
    pauses: tuple[tuple[float, float], ...] = ()
    text: str = ""


def find_segments(pcm: Pcm, rate: int) -> list[Segment]:
    """Where the signal sounds, in whole frames; gaps are not bridged."""
    frame = round(rate * FRAME_S)
    count = len(pcm) // frame
    power = np.mean(pcm[: count * frame].reshape(count, frame) ** 2, axis=1)
    sounds = np.concatenate([[False], power > 10 ** (SOUNDING_DBFS / 10), [False]])
    edges = np.flatnonzero(np.diff(sounds.astype(np.int8)))
    return [Segment(start * FRAME_S, end * FRAME_S) for start, end in edges.reshape(-1, 2).tolist()]


def merge(segments: Iterable[Segment], gap_s: float, apart_s: Sequence[float] = ()) -> list[Segment]:
    """Segments with gaps of at most `gap_s` between them as one, unless a time of `apart_s` is in the gap."""
    merged: list[Segment] = []
    for segment in segments:
        last_s = merged[-1].end_s if merged else -inf
        is_apart = any(last_s - _CUT_S <= at_s < segment.start_s for at_s in apart_s)
        if segment.start_s - last_s <= gap_s + 1e-9 and not is_apart:
            merged[-1] = Segment(merged[-1].start_s, max(segment.end_s, merged[-1].end_s))
        else:
            merged.append(segment)
    return merged


def bridge(segments: Iterable[Segment], resumed_s: Sequence[float]) -> list[Segment]:
    """Segments as one where the reply was resumed in the gap between them."""
    bridged: list[Segment] = []
    for segment in segments:
        last = bridged[-1] if bridged else None
        if last is not None and any(
            last.end_s - FRAME_S <= at_s <= segment.start_s + FRAME_S for at_s in resumed_s
        ):
            bridged[-1] = Segment(last.start_s, segment.end_s)
        else:
            bridged.append(segment)
    return bridged


def without(segments: Iterable[Segment], spans: Iterable[Segment]) -> list[Segment]:
    """What is left of the segments outside of the spans."""
    left = list(segments)
    for span in spans:
        left = [
            Segment(start_s, end_s)
            for own in left
            for start_s, end_s in (
                (own.start_s, min(own.end_s, span.start_s)),
                (max(own.start_s, span.end_s), own.end_s),
            )
            if start_s < end_s
        ]
    return left


def sounding_at(segments: Iterable[Segment], at_s: float) -> Segment | None:
    """The segment that sounds at a time."""
    return next((segment for segment in segments if segment.start_s <= at_s < segment.end_s), None)


def first_start(segments: Iterable[Segment], from_s: float, to_s: float) -> float | None:
    """The first start within a span."""
    return next((segment.start_s for segment in segments if from_s <= segment.start_s < to_s), None)


def overlap_s(user: UserSegment, model: Iterable[Segment]) -> float:
    """How long both sides sound while the user speaks; user gaps up to `USER_GAP_S` count as speech."""
    ends = [
        *((start, end) for start, end in user.pauses if end - start > USER_GAP_S),
        (user.end_s, user.end_s),
    ]
    starts = [user.start_s, *(end for _, end in ends[:-1])]
    spoken = [Segment(start, stop) for start, (stop, _) in zip(starts, ends, strict=True)]
    return sum(
        max(min(own.end_s, other.end_s) - max(own.start_s, other.start_s), 0.0)
        for own in spoken
        for other in model
    )
