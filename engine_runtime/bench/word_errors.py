"""Word error rate of synthesized speech, by an independent recognizer (Whisper).

In: speech, and the texts that it should say. Out: recognized words, and error counts. The model is a folder
with a Whisper model in CTranslate2's format, run by `faster-whisper`, which is optional. Any thread.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from engine_runtime.codec.resample import resample
from engine_runtime.types import Pcm
from engine_runtime.whisper import SAMPLE_RATE, load_model, text_of

_ORDINARY_SUPPRESSION = -1
"""Whisper's value for the tokens that it never writes by default."""
_WORD = re.compile(r"[a-z']+|[\u3400-\u9fff]")
"""An English word, or one Chinese character."""


class Recognizer:
    """A Whisper model on the CPU. Raises WhisperError without faster-whisper, or for another folder."""

    def __init__(self, folder: Path) -> None:
        self._model = load_model(folder, "quality", compute_type="float32")
        # "7" and "seven" would count as different words: Whisper is made to write numbers in words.
        vocabulary: dict[str, int] = self._model.hf_tokenizer.get_vocab()
        digits = [number for token, number in vocabulary.items() if re.search(r"^[^<]*\d", token)]
        self._suppressed = [_ORDINARY_SUPPRESSION, *sorted(digits)]

    def words(self, pcm: Pcm, rate: int, language: str | None = None) -> str:
        """What is said in `pcm` [n] at `rate` Hz, in a language by its code (None: as recognized)."""
        segments, _ = self._model.transcribe(
            resample(pcm, rate, SAMPLE_RATE),
            language=language,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
            suppress_tokens=self._suppressed,
        )
        return text_of(segments)


def language_of(text: str) -> str:
    """The language of a text, to be recognized: Chinese if it has a Chinese character, or else English."""
    return "zh" if re.search(r"[\u3400-\u9fff]", text) else "en"


def words_of(text: str) -> list[str]:
    """Lower-case words of a text without punctuation; of Chinese its characters."""
    return _WORD.findall(text.lower().replace("\u2019", "'"))


def word_errors(wanted: Sequence[str], heard: Sequence[str]) -> tuple[int, int]:
    """Insertions, deletions and substitutions over all pairs, and the number of wanted words (at least 1)."""
    pairs = [(words_of(a), words_of(b)) for a, b in zip(wanted, heard, strict=True)]
    return sum(_distance(a, b) for a, b in pairs), max(sum(len(a) for a, _ in pairs), 1)


def _distance(wanted: list[str], heard: list[str]) -> int:
    """Edit distance (Levenshtein) in words."""
    row = list(range(len(heard) + 1))
    for index, word in enumerate(wanted, start=1):
        before, row = row, [index]
        for place, other in enumerate(heard, start=1):
            row.append(min(before[place] + 1, row[-1] + 1, before[place - 1] + (word != other)))
    return row[-1]
