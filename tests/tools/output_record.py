"""The record of a loudspeaker, and the reply in it without the gaps in which it was paused."""

from __future__ import annotations

import numpy as np

from app.audio.resample import Resampler
from app.audio.ring import FADE_S
from engine_runtime.types import Pcm

_SHORTEST_GAP_S = 0.03


def gaps(record: Pcm, rate: int) -> list[tuple[int, int]]:
    """(first, end) of each silence within the record, in samples; sound that passes through zero is none."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], record == 0.0, [False]]).astype(np.int8)))
    runs = edges.reshape(-1, 2)
    inner = [(int(first), int(end)) for first, end in runs if first > 0 and end < len(record)]
    return [run for run in inner if run[1] - run[0] >= _SHORTEST_GAP_S * rate]


def without_gaps(record: Pcm, rate: int) -> Pcm:
    """The record from the first to the last sound. Around each gap both fades are added, so that what was
    faded out and in again is as loud as it was."""
    sound = np.trim_zeros(record)
    fade = round(FADE_S * rate)
    parts: list[Pcm] = []
    start = 0
    for first, end in gaps(sound, rate):
        parts += [sound[start : first - fade], sound[first - fade : first] + sound[end : end + fade]]
        start = end + fade
    return np.concatenate([*parts, sound[start:]])


def resampled(pcm: Pcm, rate: int, out_rate: int) -> Pcm:
    """A whole signal at another rate."""
    resampler = Resampler(rate, out_rate)
    return np.concatenate([resampler.push(pcm), resampler.finish()])
