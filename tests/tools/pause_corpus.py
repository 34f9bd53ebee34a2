"""Utterances with pauses in them, for the measurements of the end of a turn.

The sample questions with the word gaps that flite gave, or a folder of recordings with gaps found by level.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from app import paths
from app.audio.resample import Resampler
from app.audio.wav import read_wav
from engine_runtime.types import Pcm

RATE = 16_000
LEAD_S = 0.5
"""Silence before an utterance."""
WORD_ENDS_S = {
    "01-hello": (0.62,),
    "02-who-are-you": (0.44,),
    "03-three-plus-four": (0.72, 1.02, 1.30),
    "04-and-plus-two": (0.75,),
    "05-after-monday": (0.56, 0.85, 1.16),
    "06-capital-of-france": (0.63, 0.71, 1.26, 1.33),
    "07-opposite-of-hot": (0.62, 0.79, 1.24, 1.33),
    "08-colour-of-grass": (0.91, 1.06),
    "09-count-down": (0.63, 0.80, 1.00, 1.30, 1.38),
    "10-repeat": (0.83, 1.15, 1.45, 2.01),
    "11-joke": (0.68, 0.72),
}
"""By flite's own segment times; words that end within 0.3 s of the start are left out."""
NOISE = 5e-4
"""-66 dBFS instead of digital silence."""
_LEVEL = 0.05
"""RMS of a recording, -26 dBFS."""
_GAP_S = (0.05, 0.2)
"""Natural gaps: longer ones are mostly ends of sentences, where a speaker may as well have finished."""
_GAPS_EACH = 2


@dataclass(frozen=True)
class Utterance:
    """A finished turn, and the samples within it at which the user might pause."""

    name: str
    pcm: Pcm
    gaps: tuple[int, ...]

    @property
    def end(self) -> int:
        """Sample after the last audible one."""
        return int(np.flatnonzero(np.abs(self.pcm) > 0.01)[-1]) + 1

    def scene(self, cut: int, pause_s: float, rest_s: float) -> Pcm:
        """The utterance up to sample `cut`, a pause, and `rest_s` of what follows, over faint noise. Scenes
        of one utterance have the same noise."""
        rest = self.pcm[cut : cut + round(rest_s * RATE)]
        lead, pause = np.zeros(round(LEAD_S * RATE)), np.zeros(round(pause_s * RATE))
        scene = np.concatenate([lead, self.pcm[:cut], pause, rest])
        noise = np.random.default_rng(len(self.pcm)).standard_normal(len(scene))
        return (scene + NOISE * noise).astype(np.float32)


def samples() -> list[Utterance]:
    """The sample questions."""
    ends = ((file, WORD_ENDS_S[file.stem]) for file in paths.sample_questions())
    return [Utterance(file.stem, _read(file), tuple(round(end * RATE) for end in own)) for file, own in ends]


def recordings(folder: Path) -> Iterator[Utterance]:
    """The WAV files of a folder, at one level, with up to two of their natural gaps each."""
    for file in sorted(folder.glob("*.wav")):
        pcm = _read(file)
        loud = np.flatnonzero(np.abs(pcm) > 0.01)
        if len(loud) > RATE // 10:
            pcm = pcm[max(loud[0] - RATE // 20, 0) : loud[-1] + RATE // 20]
            pcm *= _LEVEL / np.sqrt((pcm**2).mean())
            yield Utterance(file.stem, pcm, _gaps(pcm))


def _gaps(pcm: Pcm) -> tuple[int, ...]:
    """Middles of the first gaps with speech of 0.4 s before and 0.3 s after them."""
    hop = RATE // 100
    level = np.sqrt((pcm[: len(pcm) // hop * hop].reshape(-1, hop) ** 2).mean(axis=1))
    loud = np.flatnonzero(level > 0.06 * np.percentile(level, 95))
    shortest, longest = (round(each * 100) for each in _GAP_S)
    edges = [
        (int(before), int(after))
        for before, after in pairwise(loud)
        if shortest < after - before <= longest and before - loud[0] > 40 and loud[-1] - after > 30
    ]
    return tuple((before + after) // 2 * hop for before, after in edges[:_GAPS_EACH])


def _read(file: Path) -> Pcm:
    pcm, rate = read_wav(file)
    resampler = Resampler(rate, RATE)
    return np.concatenate([resampler.push(pcm), resampler.finish()])
