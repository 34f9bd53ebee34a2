"""What the simulated users say: the shipped recordings, and coughs and clicks that are computed.

In: assets/duplex (see clips.json there). Out: clips at 16 kHz with the place of their speech. Any thread.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from app.audio.wav import read_wav
from app.duplex.room import RATE
from engine_runtime.errors import AudioInputError
from engine_runtime.types import Pcm

ClipKind = Literal["long", "short", "interruption", "backchannel", "not_directed"]
"""long and short: questions, by the length of the answer."""


@dataclass(frozen=True, slots=True)
class Clip:
    """One recording. Times in seconds from its first sample."""

    kind: ClipKind
    speaker: str
    text: str
    pcm: Pcm
    start_s: float
    """Start of the speech."""
    end_s: float
    pauses_s: tuple[float, ...]
    """Word ends at which the speaker may pause."""


def load_clips(folder: Path) -> list[Clip]:
    """All clips of the folder. AudioInputError if they are missing."""
    try:
        entries = json.loads((folder / "clips.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AudioInputError(
            "The recordings of the simulated users in {folder} cannot be read.",
            "Reinstall the program.",
            folder=folder,
        ) from error
    return [_clip(folder, entry) for entry in entries]


def _clip(folder: Path, entry: dict[str, Any]) -> Clip:
    pcm, rate = read_wav(folder / entry["file"])
    if rate != RATE:
        raise AudioInputError(
            "A recording in {folder} has {rate} Hz instead of {wanted_rate}.",
            "Render it again.",
            folder=folder,
            rate=rate,
            wanted_rate=RATE,
        )
    return Clip(
        entry["kind"],
        entry["speaker"],
        entry["text"],
        pcm,
        entry["start_s"],
        entry["end_s"],
        tuple(entry["pauses_s"]),
    )


def cough(rng: np.random.Generator) -> Pcm:
    """A burst of noise between 300 and 3,000 Hz that rises within 15 ms and dies away, once or twice."""
    bursts = []
    for _ in range(rng.integers(1, 3)):
        count = round(rng.uniform(0.18, 0.3) * RATE)
        spectrum = np.fft.rfft(rng.standard_normal(count))
        hz = np.fft.rfftfreq(count, 1 / RATE)
        spectrum *= (hz > 300) * (hz < 3_000)
        time_s = np.arange(count) / RATE
        envelope = np.minimum(time_s / 0.015, 1.0) * np.exp(-time_s / rng.uniform(0.04, 0.08))
        bursts += [np.fft.irfft(spectrum, count) * envelope, np.zeros(round(0.06 * RATE))]
    return _at_peak(np.concatenate(bursts[:-1]))


def click(rng: np.random.Generator) -> Pcm:
    """A key or a mouse button: two ringing impulses, pressed and released."""
    count = round(0.02 * RATE)
    time_s = np.arange(count) / RATE
    ring = np.sin(2 * np.pi * rng.uniform(1_500, 4_000) * time_s) * np.exp(-time_s / 0.003)
    gap = np.zeros(round(rng.uniform(0.06, 0.12) * RATE))
    return _at_peak(np.concatenate([ring, gap, 0.6 * ring]))


def _at_peak(pcm: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Pcm:
    """The loudness of the recordings."""
    return np.asarray(pcm * (0.6 / np.max(np.abs(pcm))), dtype=np.float32)
