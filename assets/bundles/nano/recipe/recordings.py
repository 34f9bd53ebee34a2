"""Questions in the recorded voice of a person, for tests alone: telephone prompts cut together.

In: Debian's `asterisk-core-sounds-en-wav` (8 kHz; Allison Smith, CC-BY-SA 3.0). Out: "three plus four" and
the like as mono float32 at 16 kHz. Nothing of it is ever trained, nor shipped.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import topics
import voices
from numpy.typing import NDArray

FOLDER = Path("/usr/share/asterisk/sounds/en_US_f_Allison")
GAP = 640  # samples between two prompts
WHOLE = {"hello": "hello.wav", "goodbye": "goodbye.wav"}


@functools.cache
def questions(folder: Path = FOLDER) -> dict[str, NDArray[np.float32]]:
    """Speech by text: greetings, sums and differences of numbers to ten; SystemExit without the files."""
    if not folder.is_dir():
        raise SystemExit(f"{folder} is missing: apt install asterisk-core-sounds-en-wav")
    found = {text: _prompt(folder / file) for text, file in WHOLE.items()}
    for first in range(1, 11):
        for second in range(1, 11):
            for word, file in (("plus", "letters/plus.wav"), ("minus", "digits/minus.wav")):
                if word == "minus" and second > first:
                    continue
                files = (f"digits/{first}.wav", file, f"digits/{second}.wav")
                text = f"{topics.NUMBERS[first]} {word} {topics.NUMBERS[second]}"
                found[text] = _join([_prompt(folder / name) for name in files])
    return found


@functools.cache
def _prompt(file: Path) -> NDArray[np.float32]:
    samples, rate = voices.read_wav(file.read_bytes())
    trimmed, _ = voices.trim(samples, rate, head_ms=10, tail_ms=20)
    return voices.resample(trimmed, rate, voices.RATE)


def _join(parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    gap = np.zeros(GAP, np.float32)
    joined = np.concatenate([piece for part in parts for piece in (part, gap)][:-1])
    return joined * np.float32(0.6 / np.abs(joined).max())
