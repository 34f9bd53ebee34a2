"""Prompts for calibration: recordings and typed questions, with variations up to the requested number.

In: WAV files, lines of text. Out: `CalibrationPrompt`s, one at a time. The first round uses the recordings
unchanged; later ones resample them (which changes speed, pitch and formants) and attenuate them, like the
recipe of the nano bundle. Deterministic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from app.audio.resample import Resampler
from app.commands.questions import read_question
from engine_runtime.tensorrt.checkpoint.calibrate import CalibrationPrompt
from engine_runtime.types import Modality, Pcm

SPEEDS = (0.84, 1.19)
SOFTEST_DB = -18.0
_TEXT_EVERY, _TEXT_REPLY_EVERY = 3, 4
"""Every third prompt is typed, if there are texts; every fourth reply is text."""


def prompts(
    files: Sequence[Path], texts: Sequence[str], rate: int, count: int
) -> Iterator[CalibrationPrompt]:
    """`count` prompts at `rate` Hz. Raises AudioInputError for a file that cannot be used."""
    generator = np.random.default_rng(0)
    spoken = typed = 0
    for index in range(count):
        reply = Modality.TEXT if index % _TEXT_REPLY_EVERY == _TEXT_REPLY_EVERY - 1 else Modality.SPEECH
        if texts and index % _TEXT_EVERY == _TEXT_EVERY - 1:
            yield CalibrationPrompt(texts[typed % len(texts)], reply)
            typed += 1
            continue
        round_, place = divmod(spoken, len(files))
        pcm = read_question(files[place], rate)
        yield CalibrationPrompt(_varied(pcm, rate, generator) if round_ else pcm, reply)
        spoken += 1


def _varied(pcm: Pcm, rate: int, generator: np.random.Generator) -> Pcm:
    speed, gain_db = generator.uniform(*SPEEDS), generator.uniform(SOFTEST_DB, 0.0)
    resampler = Resampler(round(rate * speed), rate)
    played: Pcm = np.concatenate([resampler.push(pcm), resampler.finish()])
    return played * np.float32(10 ** (gain_db / 20))
